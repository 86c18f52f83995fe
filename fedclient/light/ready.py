"""`python -m fedclient.light.ready`, at the end of an installation: try what a device without PyTorch uses.

It loads every module of it, so that Python writes their bytecode if it may. A service may not write there,
and would compile all of them at each start. Where something is missing or does not work here, this ends with
an error.
"""

import importlib
import sys

from shoal.core.errors import ShoalError

MODULES = (
    *(
        f"fedclient.cli.{verb}"
        for verb in ("join", "check", "place", "predict", "run", "status", "ledger", "consent")
    ),
    "fedclient.__main__",
    "fedclient.agent.service",
    "fedclient.placing.asking",
    "fedclient.placing.service",
    "fedclient.light.commands",
    "fedclient.light.endpoint",
    "fedclient.work.predict",
    "fedclient.work.worker",
)


def main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    from fedclient.light.trial import try_runtime

    try:
        try_runtime()
    except ShoalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
