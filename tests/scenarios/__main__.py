"""Play the recorded scenarios: python -m tests.scenarios [--record]

Without --record it shows what differs from what is recorded, and exits with 1 if anything does. With --record
it writes what comes of the commands now; read the difference with `git diff` before you commit it.
"""

import difflib
import sys

from tests.scenarios.player import played, scenarios


def main(arguments: list[str]) -> int:
    changed = 0
    for path in scenarios():
        recorded = path.read_text()
        now = played(recorded)
        if now == recorded:
            continue
        changed += 1
        if "--record" in arguments:
            path.write_text(now)
            print(f"recorded {path.name}")
        else:
            sys.stdout.writelines(
                difflib.unified_diff(
                    recorded.splitlines(True), now.splitlines(True), f"recorded {path.name}", "played now"
                )
            )
    print(f"{len(scenarios())} scenarios, {changed} changed")
    return 1 if changed and "--record" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
