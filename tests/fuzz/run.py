"""Feed the decoders for as long as one likes: `python -m tests.fuzz.run [--seconds 60] [--seed 1]`.

With atheris installed, libFuzzer looks for inputs that reach new lines of shoal. Without it the recorded
messages are changed blindly, by random flips, cuts and splices: that finds less, and it says so. Either way
an input that breaks a decoder is written to tests/fuzz/corpus, where every run of the tests tries it again.
"""

import argparse
import hashlib
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from tests.fuzz.mutations import LARGEST, changed


class Fuzzer:
    """decoders: the module of that name, as it was imported: with an eye for coverage or without."""

    def __init__(self, decoders: ModuleType) -> None:
        self._decoders, self.names = decoders, sorted(decoders.TARGETS)

    def try_one(self, data: bytes) -> None:
        """The first byte says which decoder gets the rest. What breaks it is kept, and raised."""
        name, rest = self.names[data[0] % len(self.names)] if data else self.names[0], data[1:]
        try:
            self._decoders.survive(name, rest)
        except Exception:
            folder: Path = self._decoders.CORPUS
            folder.mkdir(exist_ok=True)
            path = folder / f"{name}-{hashlib.sha256(rest).hexdigest()[:16]}.bin"
            path.write_bytes(rest)
            print(f"{path} breaks the decoder {name!r}", file=sys.stderr)
            raise

    def seeds(self) -> list[bytes]:
        found = self._decoders.seeds()
        return [bytes([at]) + data for at, name in enumerate(self.names) for data in found[name]]


def blindly(fuzzer: Fuzzer, seconds: float, seed: int) -> None:
    """Without coverage: random changes of the seeds."""
    print("atheris is not installed: changing recorded messages blindly, with no eye for coverage")
    chance, inputs, until, tried = random.Random(seed), fuzzer.seeds(), time.monotonic() + seconds, 0
    for data in inputs:
        fuzzer.try_one(data)
    while time.monotonic() < until:
        fuzzer.try_one(changed(chance.choice(inputs), chance.choice(inputs), chance))
        tried += 1
    print(f"{tried} inputs to {len(fuzzer.names)} decoders in {seconds:.0f} s, seed {seed}: none broke one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        from tests.fuzz import decoders

        blindly(Fuzzer(decoders), options.seconds, options.seed)
        return
    with atheris.instrument_imports(include=["shoal"]):
        from tests.fuzz import decoders
    fuzzer = Fuzzer(decoders)
    with TemporaryDirectory() as folder:
        for data in fuzzer.seeds():
            (Path(folder) / hashlib.sha256(data).hexdigest()).write_bytes(data)
        flags = [f"-max_total_time={options.seconds:.0f}", f"-seed={options.seed}", f"-max_len={LARGEST}"]
        atheris.Setup([sys.argv[0], *flags, "-print_final_stats=1", folder], fuzzer.try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
