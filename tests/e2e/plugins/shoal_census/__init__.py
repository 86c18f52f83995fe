"""Census, 2026: a plug-in with a task of its own. Each device says how many samples it has, and then
all train one model."""

from shoal.core.algorithm import Algorithm, TrainingParameters
from shoal_census.messages import Look, Seen

ALGORITHM = Algorithm(
    name="census",
    summary="one model, of devices that were counted first",
    parameters=TrainingParameters,
    server_module="shoal_census.server",
    device_module="shoal_census.device",
    messages=(Look, Seen),
)
