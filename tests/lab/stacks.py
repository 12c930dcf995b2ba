"""Where programs wait: for a test that has waited for them too long."""

import contextlib
import os


def programs(paths):
    """Every process that runs one of these programs."""
    found = []
    wanted = [os.path.realpath(path) for path in paths]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") in wanted:
                found.append(int(pid))
    return found


def rings(pid):
    """What the io_urings of a process have before them."""
    lines = []
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
            info = file.read()
            if "CqTail" in info:
                lines.append(f"ring {pid}/{number}: {' '.join(info.split())}")
    return lines


def hanging(paths):
    """The threads of these programs, their state, and where in the kernel they are; and their io_urings."""
    lines = []
    for pid in programs(paths):
        with contextlib.suppress(OSError):
            lines += rings(pid)
        with contextlib.suppress(OSError):
            for task in sorted(os.listdir(f"/proc/{pid}/task")):
                folder = f"/proc/{pid}/task/{task}"
                with open(f"{folder}/comm", encoding="utf-8") as file:
                    comm = file.read().strip()
                with open(f"{folder}/stat", encoding="utf-8") as file:
                    state = file.read().rpartition(")")[2].split()[0]
                with open(f"{folder}/stack", encoding="ascii") as file:
                    stack = [line.split()[-1] for line in file.read().splitlines()]
                lines.append(f"{comm} ({pid}/{task}, {state}): {' < '.join(stack)}")
    return "\n".join(lines)
