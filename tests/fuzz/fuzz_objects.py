"""Coverage-guided fuzzing of everything that reads what somebody else may have written.

`python -m tests.fuzz.fuzz_objects KIND -max_total_time=3600 [CORPUS]`: KIND is one of
`targets.KINDS`, and libFuzzer takes the other arguments. A crash leaves its input as a file: mend
what it shows, and keep the file in `found/KIND/`, whose files every run of the tests reads.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from functools import partial
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["sparkwal"]):
    from tests.fuzz.targets import KINDS, earlier_failures
    from tests.fuzz.vocabulary import MUTATIONS

# Well above what the interpreter and Arrow need, far below what a forged length could ask.
MEMORY = 3 * 2**30


def mutate(kind: str, data: bytes, largest: int, seed: int) -> bytes:
    """Mutate an input: mostly by its structure, sometimes by its bytes."""
    random = Random(seed)
    if kind in MUTATIONS and random.random() < 0.8:
        changed = MUTATIONS[kind](data, random)
        if changed != data and len(changed) <= largest:
            return changed
    return bytes(atheris.Mutate(data, largest))


def main() -> None:
    """Fuzz one kind, from its seeds."""
    kind = sys.argv.pop(1)
    read = KINDS[kind].read
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        seeds = [*KINDS[kind].seeds(), *(file.read_bytes() for file in earlier_failures(kind))]
        for number, seed in enumerate(seeds):
            (Path(folder) / str(number)).write_bytes(seed)
        folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        # libFuzzer writes what it finds into the first folder.
        arguments = [argument for argument in sys.argv if argument not in folders]
        atheris.Setup([*arguments, *folders, folder], read, custom_mutator=partial(mutate, kind))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
