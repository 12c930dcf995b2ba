#!/usr/bin/env python3
"""Kills the daemon of an array under load, again and again, and loses nothing.

    kill.py --member DISK --member DISK [--journal DISK] --count N --seed S

Without --journal the journal is attached, at --placement. Runs as root where ublk is, for instance

    ci/lab --disk A --disk B --disk C -- \\
        tests/lab/kill.py --member /dev/ubda --member /dev/ubdb --journal /dev/ubdc --count 16 --seed 1

Destroys what the disks held. Members need 512 MiB each, a journal too.

The array has two partitions. On the first, `stamps write` keeps 32 requests in flight, notes what is
acknowledged and compares what it reads; on the second, a mounted ext4 takes fsynced files. Then N times:
SIGKILL, `ujournal start`, and on it goes, without remount and without any error above. Of the kills

    a third      come while replay runs, as `status` has just said;
    an eighth    hit the daemon that is taking over from the kill before;
    9 (of 16 or more) come in a row with replay held back, so that 8 lives lie in the ring together;
    the others   come at random moments.

Now and then and at the end the load stops, everything acknowledged is compared, and a new one begins.
At the end: umount, e2fsck, a clean stop, a start, and everything is compared once more.

It tests C-DUR-5, C-REC-9, C-REP-3 and C-UBK-2 on the real device.

Prints one line for each kill, and a summary of one line of JSON. Exit codes: 0 all held and the kills
were of the kinds that they should be; 1 not so; 2 wrong usage.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time

import harness
from harness import Array, Files, Stamps, Violation, say

NAME = "killed"
WRITERS = 32
IN_FLIGHT_WANTED = 16
LIVES_WANTED = 8
# From so many kills on, some are spent on lives that lie in the ring together.
LIVES_KILLS_MIN = 16
# The load's log grows with every write, so it begins anew after so many kills.
KILLS_PER_RUN = 20

BUSY = {"replay": {"fill": 0.05, "age": "50ms", "idle": "1ms"}}
HELD_BACK = {"replay": {"fill": 0.95, "age": "1h", "idle": "1h"}}


def main():
    options = parse_command_line()
    scratch = tempfile.mkdtemp(prefix="kill.")
    test = KillTest(options, scratch)
    try:
        test.run()
        return 0
    except Violation as violation:
        say(f"FAILED (seed {options.seed}): {violation}")
        say(f"the daemon's log ends with: {test.array.log_end()}")
        for line in harness.complaints()[:5]:
            say(f"kernel: {line}")
        return 1


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--member", action="append", required=True, metavar="DISK")
    parser.add_argument("--journal", metavar="DISK", help="attached without it")
    parser.add_argument("--placement", default="end", choices=("start", "middle", "end"))
    parser.add_argument("--count", type=int, default=16, metavar="N", help="kills")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count is {options.count}, expected at least 1")
    return options


def plan_of(count, source):
    """The kinds of the kills, in order."""
    # The first of them dies with the settings of the life before.
    held = LIVES_WANTED + 1 if count >= LIVES_KILLS_MIN else 0
    kinds = ["takeover"] * max(count // 8, 1) + ["replay"] * -(-count // 3)
    kinds = (kinds + ["moment"] * count)[:count - held]
    source.shuffle(kinds)
    middle = source.randrange(len(kinds) + 1)
    kinds[middle:middle] = ["held"] * held
    # A takeover is from an earlier kill.
    if kinds[0] == "takeover":
        kinds.append(kinds.pop(0))
    return kinds


class KillTest:
    def __init__(self, options, scratch):
        self.options = options
        self.scratch = scratch
        self.source = random.Random(options.seed)
        journal = {} if options.journal else {"size": "320MiB", "placement": options.placement}
        self.array = Array(NAME, options.member, options.journal, scratch,
                           {"journal": journal, "memory": {"window": "64MiB"}, **BUSY})
        self.stamps = None
        self.stamps_runs = 0
        self.files = None
        # The last daemon that was killed.
        self.pid = None
        # When the daemon was killed that nobody has followed yet.
        self.dead_since = None
        self.kills_since = 0
        # How long a takeover takes, to hit the next one in its midst.
        self.takeover_seconds = 0.2
        self.lives_max = 0
        self.writes = 0
        self.counts = {"kills": 0, "in_flight_16": 0, "while_replay": 0, "during_takeover": 0}
        self.gaps = {"one": [], "several": []}

    def run(self):
        began = time.monotonic()
        array, options = self.array, self.options
        array.label()
        array.start()
        raw, filesystem = array.partition()
        mount = self.mount(filesystem)
        self.files = Files(os.path.join(mount, "files"), os.path.join(self.scratch, "files.log"), options.seed)
        self.files.start()
        self.begin_stamps(raw)
        say(f"{array.device}: {len(options.member)} members, journal {options.journal or options.placement}; loaded")

        for kind in plan_of(options.count, self.source):
            if kind != "takeover":
                self.bring_up(HELD_BACK if kind == "held" else BUSY)
                if self.kills_since >= KILLS_PER_RUN:
                    self.compare(raw)
                    self.begin_stamps(raw)
            self.kill(kind)
        self.bring_up(BUSY)
        # Some life after the last death.
        time.sleep(0.3)
        before = self.compare(raw)
        self.files.end()
        count = self.verify_files()
        harness.run("umount", mount)
        harness.check_filesystem(filesystem)
        array.stop()
        say(f"{count} files as they were fsynced; unmounted, filesystem clean, stopped")

        array.start()
        harness.wait_until(lambda: os.path.exists(raw) and os.path.exists(filesystem), "the partitions appear", 20)
        after = harness.verify_stamps(raw, self.log(), "acked")
        if after["digest"] != before["digest"]:
            raise Violation(f"the digest was {before['digest']:08x} before the stop and is {after['digest']:08x} after")
        harness.check_filesystem(filesystem)
        harness.run("mount", filesystem, mount)
        self.verify_files()
        harness.run("umount", mount)
        array.stop()
        say("started again: the same stamps and files; stopped")
        self.judge(time.monotonic() - began)

    def judge(self, seconds):
        """The summary, and whether the kills were those that they should be."""
        count = self.options.count
        summary = {
            "test": "kill", "journal": "detached" if self.options.journal else self.options.placement,
            "seed": self.options.seed, **self.counts, "lives_max": self.lives_max, "writes": self.writes,
            "gap_ms": spread(self.gaps["one"]), "gap_several_ms": spread(self.gaps["several"]),
            "seconds": round(seconds, 1)}
        print(json.dumps(summary), flush=True)
        if harness.complaints():
            raise Violation("the kernel saw errors")
        for what, least in (("kills", count), ("in_flight_16", count * 3 // 4), ("while_replay", count // 4),
                            ("during_takeover", count // 10)):
            if self.counts[what] < least:
                raise Violation(f"{what}: {self.counts[what]}, expected at least {least}")
        if count >= LIVES_KILLS_MIN and self.lives_max < LIVES_WANTED:
            raise Violation(f"at most {self.lives_max} lives lay in the ring at once, expected {LIVES_WANTED}")

    def mount(self, device):
        mount = os.path.join(self.scratch, "mnt")
        os.mkdir(mount)
        harness.run("mkfs.ext4", "-q", "-F", device)
        harness.run("mount", device, mount)
        return mount

    def log(self):
        return os.path.join(self.scratch, f"stamps.{self.stamps_runs}")

    def begin_stamps(self, device):
        if self.stamps_runs > 0:
            os.unlink(self.log())
        self.stamps_runs += 1
        self.kills_since = 0
        seed = self.options.seed * 1000 + self.stamps_runs
        self.stamps = Stamps(device, self.log(), seed, "--length", "160MiB", "--depth", str(WRITERS),
                             "--fsync-every", "400", "--fua", "2")
        self.stamps.wait_for_acknowledgement(0)

    def compare(self, device):
        """Ends the stamped load and compares everything."""
        done = self.stamps.end()
        report = harness.verify_stamps(device, self.log(), "acked")
        self.writes += done["writes"]
        say(f"stamps: {done['writes']} writes, {done['reads']} compared on the way; {report['stamped']} stamped of "
            f"{report['sectors']} sectors, all as acknowledged; longest wait {done['wait_max_ms']} ms")
        return report

    def verify_files(self):
        return harness.verify_files(self.files.folder, self.files.note, self.options.seed)

    def bring_up(self, settings):
        """A daemon with these settings takes over from the one that was killed."""
        if self.dead_since is None:
            return
        self.array.configure(settings)
        began = harness.now_ns()
        self.array.start()
        up_at = harness.now_ns()
        took = (up_at - began) / 1e9
        killed, several = self.dead_since
        gap = self.stamps.pause_after(killed, up_at) / 1e6
        self.gaps["several" if several else "one"].append(gap)
        self.dead_since = None
        self.takeover_seconds = took
        self.files.check()
        say(f"  taken over in {took * 1000:.0f} ms, acknowledged again {gap:.0f} ms after the kill")

    def kill(self, kind):
        """One SIGKILL."""
        starting = None
        if kind == "takeover":
            starting = self.array.begin_start()
            before = self.pid
            taker = harness.wait_until(lambda: self.array.pid() not in (None, before) and self.array.pid(),
                                       "the daemon that takes over", 60)
            time.sleep(self.source.uniform(0, self.takeover_seconds / 2))
            replaying, in_flight, lives = False, self.array.in_flight(), None
        else:
            # Held back, the lives have to fit the ring, however fast the machine is.
            self.live(0 if kind == "held" else self.source.uniform(0.05, 0.4))
            replaying, in_flight, lives = self.wait_for_moment(kind)
            self.lives_max = max(self.lives_max, lives)
            taker = self.array.pid()
        os.kill(taker, signal.SIGKILL)
        killed_at = harness.now_ns()
        during_takeover = starting is not None and starting.wait(harness.PATIENCE_SECONDS) != 0
        first = killed_at if self.dead_since is None else self.dead_since[0]
        self.dead_since = (first, self.dead_since is not None)
        self.pid = taker
        self.kills_since += 1
        self.counts["kills"] += 1
        self.counts["in_flight_16"] += in_flight >= IN_FLIGHT_WANTED
        self.counts["while_replay"] += replaying
        self.counts["during_takeover"] += during_takeover
        when = "in the midst of its takeover" if during_takeover else "while replay ran" if replaying else "serving"
        say(f"kill {self.counts['kills']} ({kind}): pid {taker} {when}, {in_flight} in flight"
            + (f", {lives} lives in the ring" if lives is not None else ""))

    def live(self, seconds):
        """Lets the load make progress for so long."""
        self.stamps.wait_for_acknowledgement(harness.now_ns())
        time.sleep(seconds)
        self.stamps.check()

    def wait_for_moment(self, kind):
        """Waits for what the kind asks for, and for enough requests in flight. Returns whether replay runs, how many
        there are, and how many lives lie in the ring."""
        def answer():
            status = self.array.status()
            wanted = kind != "replay" or (status is not None and status["replay"]["running"])
            return status if wanted else None
        status = harness.wait_until(answer, "an answer, and replay if it is wanted", 60)
        deadline = time.monotonic() + 0.05
        while (in_flight := self.array.in_flight()) < IN_FLIGHT_WANTED and time.monotonic() < deadline:
            pass
        return status["replay"]["running"], in_flight, harness.lives_of(status)


def spread(gaps):
    """Least, middle and most of some milliseconds."""
    if not gaps:
        return None
    return [round(min(gaps)), round(statistics.median(gaps)), round(max(gaps))]


if __name__ == "__main__":
    sys.exit(main())
