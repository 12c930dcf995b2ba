#!/usr/bin/env python3
"""Cuts the power of an array under load, again and again, and finds what was promised.

    powercut.py --count N --seed S [--must-fail]

Runs on any machine that runs `ci/lab`; it needs no root, and 1 GiB for the disks (in /dev/shm, or where
--folder says) beside the lab's memory. UJOURNAL_BIN is the folder of ujournal, drive and stamps.

All parts of the array are volatile drives (`drive serve`): disks whose cache dies with the lab. One run:

    1. label, start, two partitions. On the first, stamps at depth 32 with flushes among them (and, in
       half of the runs, FUA writes); on the second, a mounted ext4 that takes fsynced files. What was
       acknowledged is noted outside the lab. At a random moment the lab dies.
    2. The lab boots again, the drives are served again with empty caches, and `start` recovers. In every
       second run the lab dies a second time, at a stage of the recovery:

           scan           in the midst of a read of the ring
           START          while the START record is being written
           replay         while data is being written home
           member flush   while a member is being flushed behind that
           anchor         while one of the two anchors is being written

       The drive concerned falls silent in the midst of that very request (`drive serve --trip`), neither
       answering nor flushing, and makes a file at which the lab is cut off. So the stage is exact, the
       daemon is the one that users have, and what it has in flight is in the drives' caches. Where the
       array was served before the second cut, all stamps were read, and the third boot must show the same.
    3. The lab boots once more. Recovery; every stamp that a flush or FUA covered is there, and the others are
       a prefix; ext4 replays its own journal, `e2fsck -fn` is clean, every noted file is there; a clean
       stop, a start, and the stamps are the same.

It tests C-DUR-1, C-DUR-2, C-ORD-1, C-ATM-1, C-REC-13, C-REP-3 and C-REP-4 on the real device.

Half of the runs have drives with FUA, half without; a third has the journal attached, at the start, in the
middle and at the end of the members in turn. A cut that lost no sector that had been acknowledged does not
count, and another run takes its place.

With --must-fail the ujournal in UJOURNAL_BIN is of a build with the feature broken-flush: there is no second cut,
and at least 90 of 100 runs must find a broken promise.

Prints one line for each run, and a summary of one line of JSON. The seed decides everything but the timing
of the machine. Exit codes: 0 all held (--must-fail: enough did not); 1 not so; 2 wrong usage.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import harness
from harness import Array, Files, Stamps, Violation, say

MIB = 1 << 20
NAME = "cut"
LAB = os.path.join(harness.HERE, "..", "..", "ci", "lab")
OUT = "/mnt/lab"

DATA_BYTES = 256 * MIB
JOURNAL_BYTES = 128 * MIB
CHUNK = 64 << 10

MARGIN = MIB
FRAME = 4096

PLACEMENTS = ("end", "start", "middle")
STAGES = ("scan", "START", "replay", "member flush", "anchor")
# Of 100 runs of a broken build.
MUST_FAIL_PERCENT = 90
BOOT_TIMEOUT_SECONDS = 300

EXIT_CUT_OFF = 137
# Of a life in the lab that found a promise broken; anything else that is not 0 is a test that went wrong.
EXIT_BROKEN_PROMISE = 9


def main():
    if sys.argv[1:2] == ["inside"]:
        return inside(*sys.argv[2:])
    options = parse_command_line()
    # Whoever ends this by a signal gets the memory of the disks back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="powercut.", dir=options.folder)
    try:
        return outside(options, folder)
    except WentWrong as problem:
        say(f"the test could not be made: {problem}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--count", type=int, default=4, metavar="N", help="cuts under load that lost something")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--must-fail", action="store_true", help="the build is broken: it must be found out")
    parser.add_argument("--keep", metavar="DIR", help="copy what a failed run left behind to a new folder there")
    parser.add_argument("--folder", metavar="DIR", help="where the disks lie (default /dev/shm, if it has room)")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count is {options.count}, expected at least 1")
    if options.folder is None and shutil.disk_usage("/dev/shm").free > 3 << 30:
        options.folder = "/dev/shm"
    return options


class WentWrong(Exception):
    """The test could not be made; that says nothing about the program."""


# Where things lie on the parts.


class Layout:
    """Ranges of the parts, each as (offset, length), as docs/format.md has them."""

    def __init__(self, placement):
        if placement is None:
            self.sizes = [DATA_BYTES, DATA_BYTES, JOURNAL_BYTES]
            region, length, guard = MARGIN, JOURNAL_BYTES - 2 * MARGIN, FRAME
            self.data = (MARGIN, DATA_BYTES - 2 * MARGIN)
            self.journal_parts = [2]
        else:
            length, guard = JOURNAL_BYTES // 2, CHUNK
            self.sizes = [DATA_BYTES + length, DATA_BYTES + length]
            usable = DATA_BYTES - 2 * MARGIN
            bitmap = -(-(usable // 65536 // 8) // FRAME) * FRAME
            data = (usable - bitmap) // CHUNK * CHUNK
            before = {"start": 0, "middle": data // 2 // CHUNK * CHUNK, "end": data}[placement]
            region = MARGIN + before
            self.data = (MARGIN, before) if before else (MARGIN + length, data)
            self.journal_parts = [0, 1]
        self.ring = (region + guard, length - 2 * guard)
        # On the first part of the journal.
        self.anchors = ((region, FRAME), (region + length - FRAME, FRAME))


# Outside: the runs.


def outside(options, folder):
    began = time.monotonic()
    summary = {"test": "power cut", "seed": options.seed, "runs": 0, "failed": 0, "lost_nothing": 0, "fua": 0,
               "volatile_sectors": 0, "lost_sectors": 0, "again_at": dict.fromkeys(STAGES, 0)}
    number = 0
    while summary["runs"] < options.count:
        number += 1
        if number > 3 * options.count + 10:
            say("too many cuts lost nothing")
            return 1
        # A run that does not count is made again with other numbers, and the same drives and stage.
        result = one_run(options, number, summary["runs"] + 1, os.path.join(folder, f"run{number}"))
        if result is None:
            summary["lost_nothing"] += 1
            continue
        summary["runs"] += 1
        summary["failed"] += result["failed"]
        summary["fua"] += result["fua"]
        summary["volatile_sectors"] += result["volatile"]
        summary["lost_sectors"] += result["lost"]
        if result["stage"] is not None:
            summary["again_at"][result["stage"]] += 1
        if result["failed"] and not options.must_fail:
            break
    summary["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(summary), flush=True)
    if options.must_fail:
        if summary["failed"] * 100 < summary["runs"] * MUST_FAIL_PERCENT:
            say(f"a broken build was found out in {summary['failed']} of {summary['runs']} runs, expected "
                f"{MUST_FAIL_PERCENT} %")
            return 1
        return 0
    return 1 if summary["failed"] else 0


def plan_of(options, number, place):
    """All that is random in a run, and what is due at its place in the row."""
    source = random.Random(f"{options.seed} {number}")
    stage = None
    # Of four runs in a row each kind of drive is cut once and twice; the stages take turns.
    if place % 2 == 0 and not options.must_fail:
        stage = STAGES[place // 2 % len(STAGES)]
    placement = PLACEMENTS[place // 3 % len(PLACEMENTS)] if place % 3 == 0 else None
    return {
        "seed": source.randrange(1 << 30),
        "placement": placement,
        "fua": place % 4 in (1, 2),
        "stamps_fua": source.choice((0, 1)),
        "flush_every": source.choice((100, 400, 1600)),
        "file_pause": source.choice((0.02, 0.1, 0.4)),
        "destage_rate": source.choice((1, 5, 20)),
        "seconds": source.uniform(0.3, 2.0),
        "replay": source.choice((
            {"fill": 0.05, "age": "50ms", "idle": "1ms"},
            {"fill": 0.3, "age": "1s"},
            {"fill": 0.9, "age": "1h", "idle": "1h"},
        )),
        "stage": stage,
        "trips": trips_of(stage, Layout(placement), source),
    }


def trips_of(stage, layout, source):
    """The requests at which a drive falls silent: (part, trip), and the first that comes ends it."""
    def trip(part, operation, place, count):
        return part, f"{operation}:{place[0]}+{place[1]}#{count}"
    if stage == "scan":
        count = source.randint(1, 3)
        return [trip(part, "read", layout.ring, count) for part in layout.journal_parts]
    if stage == "START":
        return [trip(part, "write", layout.ring, 1) for part in layout.journal_parts]
    if stage == "replay":
        return [trip(source.randrange(2), "write", layout.data, source.randint(1, 6))]
    if stage == "member flush":
        return [trip(source.randrange(2), "flush", layout.data, 1)]
    if stage == "anchor":
        return [trip(layout.journal_parts[0], "write", source.choice(layout.anchors), 1)]
    return []


def one_run(options, number, place, folder):
    """Prints the run's line. Returns what came out, or None if the cut lost nothing."""
    began = time.monotonic()
    plan = plan_of(options, number, place)
    out = os.path.join(folder, "out")
    os.makedirs(out)
    disks = []
    for part, size in enumerate(Layout(plan["placement"]).sizes):
        disks.append(os.path.join(folder, f"part{part}"))
        with open(disks[-1], "wb") as disk:
            disk.truncate(size)
    with open(os.path.join(out, "plan.json"), "w", encoding="ascii") as file:
        json.dump(plan, file)

    words = [f"run {number}: journal {plan['placement'] or 'detached'}, fua {'on' if plan['fua'] else 'off'}"]
    failed, result = True, {}
    volatile = [0]
    try:
        expect_cut(boot(disks, out, "load"), "under load")
        volatile = [volatile_sectors(out, part) for part in range(len(disks))]
        words.append(f"cut with {'+'.join(map(str, volatile))} sectors volatile")
        if plan["stage"] is not None:
            expect_cut(boot(disks, out, "cut-again"), plan["stage"])
            words.append(f"again at {plan['stage']}")
        status, text = boot(disks, out, "verify")
        if status == EXIT_BROKEN_PROMISE:
            raise Violation(last_line(text))
        if status != 0:
            raise WentWrong(f"the lab ended with {status}: {last_line(text)}")
        with open(os.path.join(out, "result.json"), encoding="ascii") as file:
            result = json.load(file)
        failed = False
        words.append(f"{result['acknowledged']} writes acknowledged, {result['flushes']} flushes, "
                     f"{result['required']} sectors as promised, {result['lost_sectors']} acknowledged but lost, "
                     f"{result['files']} files")
    except Violation as violation:
        words.append(f"{'found out' if options.must_fail else 'FAILED'}: {violation}")
    except WentWrong as problem:
        if options.must_fail:
            raise
        words.append(f"FAILED: {problem}")
    words.append(f"{time.monotonic() - began:.1f} s")
    print("; ".join(words), flush=True)
    if failed and options.keep:
        shutil.copytree(folder, os.path.join(options.keep, f"seed{options.seed}-run{number}"))
    shutil.rmtree(folder)
    # A cut that lost nothing has shown nothing.
    if not failed and result["lost_sectors"] == 0:
        return None
    return {"failed": failed, "fua": plan["fua"], "volatile": sum(volatile), "lost": result.get("lost_sectors", 0),
            "stage": plan["stage"]}


def boot(disks, out, what):
    """One life of the lab; returns its exit status and what it said."""
    command = [LAB, "--cpus", "2", "--mem", "1G", "--out", out, "--timeout", str(BOOT_TIMEOUT_SECONDS)]
    for disk in disks:
        command += ["--disk", disk]
    if what != "verify":
        command += ["--kill-file", f"{what}.now"]
    command += ["--", os.path.realpath(__file__), "inside", what]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, errors="replace", check=False)
    with open(os.path.join(out, f"{what}.out"), "w", encoding="utf-8") as file:
        file.write(ended.stdout)
    return ended.returncode, ended.stdout


def expect_cut(booted, where):
    status, text = booted
    if status != EXIT_CUT_OFF:
        raise WentWrong(f"no cut {where}, the lab ended with {status}: {last_line(text)}")


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def volatile_sectors(out, part):
    """How many sectors a drive had not stored yet when the lab died, as of its last status."""
    with open(os.path.join(out, f"load.drive{part}.status"), encoding="ascii") as file:
        return int(re.search(r"volatile ([0-9]+)", file.read())[1])


# Inside the lab: one life each.


def inside(what):
    with open(os.path.join(OUT, "plan.json"), encoding="ascii") as file:
        plan = json.load(file)
    array = None
    try:
        parts = serve_drives(plan, what)
        sections = {"memory": {"window": "32MiB"}, "replay": plan["replay"]}
        if plan["placement"] is not None:
            sections["journal"] = {"size": f"{JOURNAL_BYTES // MIB}MiB", "placement": plan["placement"]}
        journal = parts[2] if plan["placement"] is None else None
        array = Array(NAME, parts[:2], journal, "/run", sections)
        {"load": load, "cut-again": cut_again, "verify": verify}[what](array, plan)
        return 0
    except Violation as violation:
        if array is not None:
            say(f"the daemon's log ends with: {array.log_end()}")
        print(str(violation).replace("\n", " "), flush=True)
        # Only what is found after the cut is a promise that was broken.
        return EXIT_BROKEN_PROMISE if what == "verify" else 1
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        return 1


def serve_drives(plan, what):
    """The parts: two members, and the journal if it is detached."""
    parts = []
    disks = ("/dev/ubda", "/dev/ubdb", "/dev/ubdc")[:len(Layout(plan["placement"]).sizes)]
    for part, disk in enumerate(disks):
        command = [harness.DRIVE, "serve", "--file", disk, "--cache", "16MiB", "--fua", "on" if plan["fua"] else "off",
                   "--destage-rate", str(plan["destage_rate"]), "--destage-seed", str(plan["seed"] + part),
                   "--status", f"{OUT}/{what}.drive{part}.status", "--status-interval", "5",
                   "--log", f"{OUT}/{what}.drive{part}.log"]
        for at, trip in plan["trips"]:
            if what == "cut-again" and at == part:
                command += ["--trip", trip, "--trip-file", f"{OUT}/{what}.now"]
        # What goes on in the background keeps our stderr open.
        served = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, timeout=harness.PATIENCE_SECONDS, check=False)
        if served.returncode != 0:
            raise RuntimeError(f"drive {part} ended with {served.returncode}: see {what}.drive{part}.log")
        parts.append(served.stdout.strip())
    return parts


def load(array, plan):
    array.label()
    array.start()
    raw, filesystem = array.partition()
    harness.run("mkfs.ext4", "-q", "-F", filesystem)
    mount = mount_filesystem(filesystem)
    files = Files(os.path.join(mount, "files"), f"{OUT}/files.log", plan["seed"], plan["file_pause"])
    files.start()
    stamps = Stamps(raw, f"{OUT}/stamps.log", plan["seed"], "--length", "48MiB", "--depth", "32",
                    "--fsync-every", str(plan["flush_every"]), "--fua", str(plan["stamps_fua"]))
    stamps.wait_for_acknowledgement(0)
    say(f"loaded, cut in {plan['seconds']:.2f} s")
    time.sleep(plan["seconds"])
    stamps.check()
    files.check()
    cut_here("load")


def cut_here(what):
    """Asks for the end of this machine."""
    with open(f"{OUT}/{what}.now", "wb"):
        pass
    time.sleep(60)
    raise Violation("the lab was not cut off")


def cut_again(array, plan):
    """A recovery that ends at the plan's stage. What needs replay waits until all stamps have been read."""
    array.configure({"replay": {"fill": 0.95, "age": "1h", "idle": "1h"}})
    array.start()
    raw, _ = partitions(array)
    report = harness.verify_stamps(raw, f"{OUT}/stamps.log", "flushed")
    note("digest.json", report["digest"])
    harness.run(harness.UJOURNAL, "sync", NAME)
    raise Violation(f"the stage {plan['stage']} ({plan['trips']}) never came")


def note(name, value):
    with open(f"{OUT}/{name}", "w", encoding="ascii") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def verify(array, plan):
    array.start()
    raw, filesystem = partitions(array)
    report = harness.verify_stamps(raw, f"{OUT}/stamps.log", "flushed")
    if os.path.exists(f"{OUT}/digest.json"):
        with open(f"{OUT}/digest.json", encoding="ascii") as file:
            seen_before = json.load(file)
        if report["digest"] != seen_before:
            raise Violation(f"the digest was {seen_before:08x} before the second cut and is {report['digest']:08x} after")
    # ext4 replays its own journal.
    mount = mount_filesystem(filesystem)
    harness.run("umount", mount)
    harness.check_filesystem(filesystem)
    harness.run("mount", filesystem, mount)
    files = harness.verify_files(os.path.join(mount, "files"), f"{OUT}/files.log", plan["seed"])
    harness.run("umount", mount)
    if harness.complaints():
        raise Violation(f"the kernel saw errors: {harness.complaints()[0]}")
    array.stop()
    array.start()
    raw, filesystem = partitions(array)
    again = harness.verify_stamps(raw, f"{OUT}/stamps.log", "flushed")
    if again["digest"] != report["digest"]:
        raise Violation(f"the digest was {report['digest']:08x} before the stop and is {again['digest']:08x} after")
    harness.check_filesystem(filesystem)
    array.stop()
    note("result.json", {**report, "files": files})


def partitions(array):
    parts = [f"{array.device}p1", f"{array.device}p2"]
    harness.wait_until(lambda: all(map(os.path.exists, parts)), "the partitions appear", 20)
    return parts


def mount_filesystem(device):
    mount = "/mnt/files"
    os.makedirs(mount, exist_ok=True)
    harness.run("mount", device, mount)
    return mount


if __name__ == "__main__":
    sys.exit(main())
