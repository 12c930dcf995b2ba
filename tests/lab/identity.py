#!/usr/bin/env python3
"""Which parts an array is made of, and everything that must not pass for it: on a kernel with ublk.

    ci/lab --mem 3G -- tests/lab/identity.py [--quick] [--seed N] [--list] [WORD...]

Prints one line for each case. Every refusal must have the exit code of the contract and one sentence
that names what is wrong, and must leave each byte of every part that no live array owns as it was.
--quick runs every case with smaller counts (about a minute).

Exit codes: 0 every case passed; 1 some did not; 2 wrong usage.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from cases import (DAMAGED, DRIVE, FAILED, KIB, MIB, PATIENCE, REFUSED, SECTOR, UJOURNAL, Array, case, drives,
                     expect, expect_equal, expect_waiting, file_of, fio_verify, is_alive, loop, main, mounted, pattern, run,
                     sha256, ujournal, unchanged, wait_until, with_filesystem, write_at)


# Arrays that start.


@case("32 members and a journal serve, and start again in whatever order the members are listed")
def many_members(folder, quick):
    array = Array.of_files(folder, "many", 32, size=8 * MIB)
    array.label()
    array.start()
    expect(array.size() > 32 * 5 * MIB, f"the device has only {array.size()} bytes")
    fio_verify(array.link, size="64m" if quick else "180m")
    before = with_filesystem(array, folder)
    array.stop()
    for shuffled in range(1 if quick else 4):
        members = random.sample(array.members, 32)
        array.start(config=array.write(file=f"shuffled{shuffled}.toml", members=members))
        expect_equal("sha256 of the device", before, sha256(array.link))
        array.stop()


@case("32 members and a journal that are block devices serve, take a killed daemon over, and start again")
def many_disks(folder, quick):
    with contextlib.ExitStack() as stack:
        files = [file_of(folder, f"disk{i}", 8 * MIB) for i in range(33)]
        disks = [stack.enter_context(loop(file)) for file in files]
        array = Array(folder, "disks", disks[:32], disks[32])
        array.label()
        array.start()
        fio_verify(array.link, size="32m" if quick else "180m")
        block = array.block
        before = sha256(block)
        array.kill()
        array.start()
        expect_equal("the device", block, array.block)
        expect_equal("sha256 of the device after the takeover", before, sha256(block))
        array.stop()
        array.start()
        expect_equal("sha256 of the device after a stop", before, sha256(array.link))
        array.stop()


@case("three members start in each of their six orders, with the journal detached and attached")
def orders(folder, quick):
    attached = {"journal": ['size = "6MiB"', 'placement = "middle"']}
    kinds = {"detached": {}, "attached": {"journal": 0, "keys": Array.SMALL | attached}}
    for name, options in kinds.items():
        array = Array.of_files(folder, name, 3, **options)
        array.label()
        array.start()
        write_at(array.link, 0, pattern(name, 2 * MIB))
        before = sha256(array.link)
        array.stop()
        orders = list(itertools.permutations(array.members))
        for number, members in enumerate(random.sample(orders, 2) if quick else orders):
            array.start(config=array.write(file=f"{name}{number}.toml", members=members))
            expect_equal(f"sha256 of the device with {members}", before, sha256(array.link))
            array.stop()


@case("two arrays serve at once beside a foreign ublk device that was there first")
def two_arrays(folder, quick):
    with drives("--size", "64MiB") as [foreign]:
        expect_equal("the foreign device", "/dev/ublkb0", foreign)
        data = pattern("foreign", 4 * MIB)
        write_at(foreign, 0, data)
        arrays = [Array.of_files(folder, name, 2) for name in ("left", "right")]
        for array in arrays:
            array.label()
            array.start()
        blocks = [array.block for array in arrays]
        expect(len({foreign, *blocks}) == 3, f"the devices are {blocks} beside {foreign}")
        for array in arrays:
            write_at(array.link, MIB, pattern(array.name, MIB))
        listed = json.loads(ujournal("list", "--json").expect_done().out)
        expect_equal("the arrays of list", [["left", blocks[0]], ["right", blocks[1]]],
                     [[entry["name"], entry["block"]] for entry in listed])
        # Each daemon dies, and each start finds its own device among all of them.
        for array in arrays:
            array.kill()
        for array, block in zip(reversed(arrays), reversed(blocks)):
            array.start()
            expect_equal("the device after the takeover", block, array.block)
        for array in arrays:
            with open(array.link, "rb") as device:
                device.seek(MIB)
                expect(device.read(MIB) == pattern(array.name, MIB), f"{array.name} holds something else")
            array.stop()
        with open(foreign, "rb") as device:
            expect(device.read(4 * MIB) == data, "the foreign device holds something else")


@case("a part that has grown starts, its extra bytes stay unused, and check says so")
def grown(folder, quick):
    array = Array.of_files(folder, "grown", 2)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("grown", MIB))
    before, size = sha256(array.link), array.size()
    array.stop()
    for part in array.parts:
        os.truncate(part, os.path.getsize(part) + MIB + SECTOR)
    checked = ujournal("check", array.config).expect_done("would start")
    for part in array.parts:
        expect(f"{part} has 1.0 MiB ({MIB + SECTOR} bytes) more" in checked.out, f"check does not say that {part} has grown: {checked}")
    array.start()
    expect_equal("size", size, array.size())
    expect_equal("sha256 of the device", before, sha256(array.link))
    array.stop()
    for part in array.parts:
        with open(part, "rb") as file:
            file.seek(-(MIB + SECTOR), os.SEEK_END)
            expect(not any(file.read()), f"{part} was written behind its old end")
    # All of this must hold for the labels that come off as well.
    ujournal("clear", array.config).expect_done()
    ujournal("start", array.config).expect_failed(REFUSED, "carries no ujournal label")


# Arrays that run.


@case("a second start of a running array is refused with the daemon's pid, and the first goes on")
def start_twice(folder, quick):
    array = Array.of_files(folder, "twice", 2)
    array.label()
    array.start()
    pid = array.pid
    ujournal("start", array.config).expect_failed(REFUSED, "twice", "running already", f"pid {pid}")
    ujournal("start", array.config, "--foreground").expect_failed(REFUSED, "running already", f"pid {pid}")
    # Under another name the daemons' own lock does not meet, but the parts' locks do.
    other = array.write(file="other.toml", name="other")
    def holds(part):
        return f"array twice is running (pid {pid}) and holds {part}; stop it first: ujournal stop twice"
    first = array.members[0]
    for command in ("start", "label", "check", "clear"):
        outcome = ujournal(command, other)
        if command == "check":
            expect(outcome.code == REFUSED and holds(first) in outcome.out, f"{outcome}")
        else:
            outcome.expect_failed(REFUSED, holds(first))
    ujournal("label", "--force", array.config).expect_failed(REFUSED, holds(first))
    ujournal("clear", "--force", array.config).expect_failed(REFUSED, holds(first))
    # Another array that shares one member.
    fresh = file_of(folder, "fresh", 16 * MIB)
    with unchanged(fresh):
        sharing = array.write(file="sharing.toml", name="sharing", members=[fresh, array.members[1]])
        ujournal("label", "--force", sharing).expect_failed(REFUSED, holds(array.members[1]))
    # Another array of the same name.
    namesake = Array.of_files(os.path.join(folder, os.makedirs(f"{folder}/namesake") or "namesake"), "twice", 2)
    namesake.label()
    with unchanged(*namesake.parts):
        ujournal("start", namesake.config).expect_failed(REFUSED, "twice", "running already", f"pid {pid}")
    fio_verify(array.link, size="8m")
    expect_equal("the daemon", pid, array.pid)
    array.stop()


@case("stop is refused while the device is mounted or open, and names by whom; then it succeeds")
def stop_in_use(folder, quick):
    array = Array.of_files(folder, "used", 2)
    array.label()
    array.start()
    run("mkfs.ext4", "-q", array.link)
    point = os.path.join(folder, "mnt")
    with mounted(array.link, point):
        ujournal("stop", "used").expect_failed(REFUSED, "in use", f"mounted on {point}")
        with open(os.path.join(point, "file"), "wb") as file:
            file.write(pattern("used", MIB))
            os.fsync(file.fileno())
    with open(array.link, "rb") as held:
        ujournal("stop", "used").expect_failed(REFUSED, "in use", f"open by python3 (pid {os.getpid()})")
        expect(held.read(MIB) is not None, "it reads")
    with loop(array.block) as above:
        ujournal("stop", "used").expect_failed(REFUSED, "in use", os.path.basename(above))
    array.stop()
    array.start()
    with mounted(array.link, point), open(os.path.join(point, "file"), "rb") as file:
        expect(file.read() == pattern("used", MIB), "the file holds something else")
    array.stop()


@case("what the live device says wins over the file at a takeover, and status shows the difference")
def takeover_differs(folder, quick):
    array = Array.of_files(folder, "live", 2)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("live", MIB))
    before = sha256(array.link)
    array.kill()
    block = array.block
    wait_until("the device to be left behind", lambda: (
        f"{block} is still there from a daemon that ended: start takes it over" in ujournal("check", array.config).expect_done().out))
    expect_equal("the kind of start that check foresees", "takeover",
                 json.loads(ujournal("check", array.config, "--json").expect_done().out)["recovery"]["kind"])
    changed = array.write(file="changed.toml", keys=Array.SMALL | {
        "device": ["queue_depth = 16", 'max_io = "64KiB"'], "commit": ['sync = "always"']})
    array.start(config=changed)
    expect_equal("what differs", {"device.queue_depth": ["16", "32"], "device.max_io": ["65536", "131072"],
                                  "commit.sync": ["always", "flush"]},
                 {entry["key"]: [entry["file"], entry["live"]] for entry in array.status()["differs"]})
    expect_equal("max_sectors_kb", "128", array.queue("max_sectors_kb"))
    expect_equal("write_cache", "write back", array.queue("write_cache"))
    expect_equal("sha256 of the device", before, sha256(array.link))
    array.stop()
    array.start(config=changed)
    expect_equal("what differs after a clean start", [], array.status()["differs"])
    expect_equal("max_sectors_kb", "64", array.queue("max_sectors_kb"))
    expect_equal("write_cache", "write through", array.queue("write_cache"))
    array.stop()


# Arrays without a daemon.


@case("without its daemon a mounted device is listed as waiting, keeps its labels, and goes on with the next start")
def waiting(folder, quick):
    other, array = Array.of_files(folder, "other", 1), Array.of_files(folder, "waits", 2)
    for one in (other, array):
        one.label()
        one.start()
    run("mkfs.ext4", "-q", array.link)
    block = array.block
    with mounted(array.link, os.path.join(folder, "mnt")) as point:
        for number, (signal_, why) in enumerate([(signal.SIGKILL, "its daemon died"), (signal.SIGTERM, "no daemon")]):
            data = pattern(number, MIB)
            with open(os.path.join(point, f"file{number}"), "wb") as file:
                file.write(data)
                os.fsync(file.fileno())
            pid = array.pid
            os.kill(pid, signal_)
            wait_until("the daemon's end", lambda: not is_alive(pid), patience=30)
            expect_waiting(array, why)
            # Nothing is said of the other one but that it runs.
            states = {entry["name"]: entry["state"] for entry in json.loads(ujournal("status", "--json").out)}
            expect_equal("the states of all", {"other": "DIRTY", "waits": "WAITING"}, states)
            there = f"array waits: its device {block} is still there (mounted on {point}), waiting for a daemon"
            with unchanged(*array.parts):
                remedy = f"start {array.config} takes it over, stop --force waits gives it up"
                for command in (["label"], ["label", "--force"], ["clear"], ["clear", "--force"]):
                    ujournal(*command, array.config).expect_failed(REFUSED, f"{there}; {remedy}")
                # Nor may one of its disks become part of another array.
                blank = file_of(folder, "blank", 16 * MIB)
                taken = array.write(file="taken.toml", name="taken", members=[blank, array.members[1]])
                ujournal("label", "--force", taken).expect_failed(REFUSED, there, "stop --force waits gives it up")
                for command in ("stop", "sync"):
                    ujournal(command, "waits").expect_failed(
                        FAILED, there, "ujournal start CONFIG takes it over", "ujournal stop --force waits gives it up")
            array.start()
            expect_equal("the device after the takeover", block, array.block)
            run("sysctl", "-q", "vm.drop_caches=3")
            with open(os.path.join(point, f"file{number}"), "rb") as file:
                expect(file.read() == data, "the file holds something else")
    for one in (array, other):
        one.stop()
    expect_equal("the list", "no running arrays\n", ujournal("list").expect_done().out)


@case("a device that cannot be taken over is given up by stop --force: its users get errors, its array stays dirty")
def given_up(folder, quick):
    for users in ("mounted", "nobody"):
        array = Array.of_files(folder, f"lost-{users}", 2)
        array.label()
        array.start()
        run("mkfs.ext4", "-q", array.link)
        data = pattern(users, MIB)
        point = os.path.join(folder, users)
        with mounted(array.link, point), open(os.path.join(point, "file"), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        if users == "mounted":
            run("mount", array.link, point)
        block = array.block
        array.kill()
        # Its journal's disk has been replaced.
        os.rename(array.journal, array.journal + ".away")
        file_of(folder, os.path.basename(array.journal), 4 * MIB)
        ujournal("start", array.config).expect_failed(REFUSED, array.journal, "carries no ujournal label")
        expect_waiting(array, "no daemon")
        with unchanged(*array.parts, array.journal + ".away"):
            ujournal("stop", "--force", array.name).expect_done(block, "gets errors", "stays dirty")
        for path in (block, array.link, *(f"/run/ujournal/{array.name}.{kind}" for kind in ("sock", "device"))):
            expect(not os.path.lexists(path), f"{path} is left")
        if users == "mounted":
            run("sysctl", "-q", "vm.drop_caches=3")
            try:
                with open(os.path.join(point, "file"), "rb") as file:
                    expect(not file.read(), "it was read from nowhere")
            except OSError:
                pass
            run("umount", point)
        for options in ([], ["--force"]):
            ujournal("stop", array.name, *options).expect_failed(FAILED, f"no array {array.name} is running")
        expect_equal("the list", "no running arrays\n", ujournal("list").expect_done().out)
        # With the right disk again all that was flushed is there.
        os.replace(array.journal + ".away", array.journal)
        array.start()
        expect_equal("the kind of start", "recovery", array.status()["recovery"]["kind"])
        with mounted(array.link, point), open(os.path.join(point, "file"), "rb") as file:
            expect(file.read() == data, "the file holds something else")
        array.stop()


@case("a device whose takeover was begun and found damage can be given up as well, and its array cleared")
def given_up_damaged(folder, quick):
    array = Array.of_files(folder, "damaged", 1)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("damaged", MIB))
    block = array.block
    array.kill()
    # All of the journal but its labels.
    write_at(array.journal, MIB, pattern("noise", 2 * MIB))
    for _ in range(2):
        ujournal("start", array.config).expect_failed(DAMAGED)
        expect_waiting(array, "no daemon")
    ujournal("clear", "--force", array.config).expect_failed(REFUSED, f"its device {block} is still there")
    ujournal("stop", "--force", array.name).expect_done(block, "gets errors", "stays dirty")
    ujournal("start", array.config).expect_failed(DAMAGED)
    ujournal("clear", "--force", array.config).expect_done("labels taken off")


@case("stop --force never takes away what a daemon serves, or a foreign device under the number of its own")
def not_given_up(folder, quick):
    array = Array.of_files(folder, "gone", 1)
    array.label()
    array.start()
    block, record = array.block, "/run/ujournal/gone.device"
    array.kill()
    # Its device goes, but what points to it stays, as if another program had removed it.
    with open(record, "rb") as file:
        kept = file.read()
    ujournal("stop", "--force", "gone").expect_done(block)
    with open(record, "wb") as file:
        file.write(kept)
    os.symlink(block, array.link)
    with drives("--size", "16MiB") as [foreign]:
        expect_equal("the foreign device", block, foreign)
        write_at(foreign, 0, pattern("foreign", MIB))
        for options in ([], ["--force"]):
            ujournal("stop", "gone", *options).expect_failed(FAILED, "no array gone is running")
        expect_equal("the list", "no running arrays\n", ujournal("list").expect_done().out)
        with open(foreign, "rb") as device:
            expect(device.read(MIB) == pattern("foreign", MIB), "the foreign device holds something else")
        # The array starts beside it, under another number.
        array.start()
        expect(array.block != foreign, f"both are {foreign}")
        pid = array.pid
        # Another array of the same name may not make it forgotten.
        array.kill()
        namesake = Array.of_files(os.path.join(folder, os.makedirs(f"{folder}/namesake") or "namesake"), "gone", 1)
        namesake.label()
        ujournal("start", namesake.config).expect_failed(
            REFUSED, f"its device {array.block} is still there", "another array of this name",
            "stop --force gone gives it up")
        expect_waiting(array, "no daemon")
        array.start()
        expect(array.pid != pid, "it is the same daemon")
        array.stop()


@case("an interrupted stop or sync goes on in the daemon, and a second stop joins the first")
def interrupted(folder, quick):
    array = Array.of_files(folder, "slow", 1)
    array.label()
    for command in ("sync", "stop"):
        array.start()
        pid = array.pid
        write_at(array.link, 0, pattern(command, MIB), sync=False)
        os.kill(pid, signal.SIGSTOP)
        call = [UJOURNAL, command, "slow"]
        first = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=PATIENCE)
        expect_equal(f"how the interrupted {command} ended",
                     (130, "", f"ujournal: the {command} goes on in the daemon; see ujournal status slow\n"),
                     (first.returncode, out, err))
        more = [subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for _ in range(3)]
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        for process in more:
            out, err = process.communicate(timeout=PATIENCE)
            expect_equal(f"exit code of the next {command}", (0, ""), (process.returncode, err))
        if command == "sync":
            array.stop()
        expect(not os.path.lexists(array.link), "the device is left")


@case("a daemon that is starting, or whose socket is gone, is told apart from one that died")
def phases(folder, quick):
    array = Array.of_files(folder, "phases", 1)
    array.label()
    array.start()
    pid = array.pid
    with open(f"/proc/{pid}/comm", encoding="ascii") as comm:
        expect_equal("what the daemon is called", "ujournal\n", comm.read())
    os.unlink("/run/ujournal/phases.sock")
    for command in ("status", "stop", "sync"):
        ujournal(command, "phases").expect_failed(FAILED, f"is running (pid {pid})", "nobody listens", f"`kill {pid}`")
    [entry] = json.loads(ujournal("list", "--json").expect_done().out)
    expect_equal("what list says", ["UNKNOWN", pid, array.block], [entry[key] for key in ("state", "pid", "block")])
    os.kill(pid, signal.SIGTERM)
    wait_until("the daemon's end", lambda: not is_alive(pid))
    ujournal("check", array.config).expect_done("stopped cleanly")
    # A start that waits for a disk.
    os.rename(array.journal, array.journal + ".away")
    process = subprocess.Popen([UJOURNAL, "start", "--wait", "20s", array.config], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until("STARTING in the list", lambda: "phases  STARTING" in ujournal("list").expect_done().out)
    shown = ujournal("status", "phases")
    expect(shown.code == FAILED and shown.out.startswith("phases: STARTING\n"), f"{shown}")
    ujournal("stop", "phases").expect_failed(FAILED, "still starting")
    os.rename(array.journal + ".away", array.journal)
    expect_equal("exit code of the start that waited", 0, process.wait(PATIENCE))
    array.stop()


# Parts that do not belong.


@case("a missing member or journal is refused by start and check, and waited for no longer than asked")
def missing(folder, quick):
    array = Array.of_files(folder, "missing", 3)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("missing", MIB))
    array.stop()
    for part in array.parts[1:]:
        away = part + ".away"
        os.rename(part, away)
        others = [other for other in array.parts if other != part]
        with unchanged(away, *others):
            ujournal("start", array.config).expect_failed(REFUSED, part, "there is no such disk or file")
            waited = ujournal("start", array.config, "--wait", "700ms").expect_failed(REFUSED, part, "no such disk")
            expect(0.7 <= waited.took < 5, f"it waited {waited.took:.1f} s, expected 0.7 s")
            checked = ujournal("check", array.config)
            expect(checked.code == REFUSED and "would be refused" in checked.out and part in checked.out, f"{checked}")
            ujournal("clear", array.config).expect_failed(REFUSED, part, "no such disk")
            ujournal("label", "--force", array.config).expect_failed(REFUSED, part, "no such disk")
            # Left out of the configuration instead.
            if part in array.members:
                fewer = array.write(file="fewer.toml", members=[m for m in array.members if m != part])
                role = f"member {array.members.index(part)}"
                ujournal("start", fewer).expect_failed(
                    REFUSED, f"{fewer} lists 2 members, array missing has 3: {role} is not among them")
        os.rename(away, part)
    empty = "/dev/loop7"
    with unchanged(*array.parts):
        without = array.write(file="without.toml", members=[array.members[0], empty, array.members[2]])
        ujournal("start", without).expect_failed(REFUSED, empty, "there is no such disk or file")
    array.start()
    array.stop()


@case("a foreign, blank or otherwise impossible part is refused by name")
def foreign(folder, quick):
    array = Array.of_files(folder, "mine", 3)
    other = Array.of_files(folder, "theirs", 3)
    for one in (array, other):
        one.label()
        one.start()
        one.stop()
    blank = file_of(folder, "blank", 16 * MIB)
    noise = file_of(folder, "noise", 16 * MIB)
    write_at(noise, 0, pattern("noise", 16 * MIB))
    tiny = file_of(folder, "tiny", 4 * KIB)
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    with unchanged(*array.parts, *other.parts, blank, noise, tiny):
        for stranger, words in [
            (other.members[1], [array.members[0], "array mine", other.members[1], "array theirs", "means mine: correct data.members"]),
            (other.journal, [array.members[0], "array mine", other.journal, "array theirs"]),
            (blank, [blank, "carries no ujournal label"]),
            (noise, [noise, "carries no ujournal label"]),
            (tiny, [tiny, "carries no ujournal label"]),
            (pipe, [pipe, "is a pipe or socket", "expected a block device or a regular file"]),
            (folder, [folder, "is a directory"]),
            ("/dev/null", ["/dev/null", "is a character device"]),
        ]:
            config = array.write(file="foreign.toml", members=[array.members[0], stranger, array.members[2]])
            ujournal("start", config).expect_failed(REFUSED, *words)
            checked = ujournal("check", config)
            expect(checked.code == REFUSED and words[-1] in checked.out, f"{checked}")
            ujournal("clear", config).expect_failed(REFUSED, *words)
        for stranger, words in [(other.journal, ["array mine", "array theirs", other.journal, "correct journal.device"]), (blank, [blank, "carries no ujournal label"]),
                                (array.members[0], ["more than once", array.members[0]])]:
            config = array.write(file="foreign.toml", journal=stranger)
            outcome = ujournal("start", config)
            # The same path twice is a matter of the file alone.
            if stranger == array.members[0]:
                outcome.expect_failed(2, "journal.device", "data.members[0]")
            else:
                outcome.expect_failed(REFUSED, *words)
    # A member in the place of the journal, and the journal in the place of a member: the labels tell.
    config = array.write(file="swapped.toml", members=[array.journal, *array.members[1:]], journal=array.members[0])
    array.start(config=config)
    array.stop()


@case("the journals of two arrays, exchanged, are refused and both arrays named")
def exchanged(folder, quick):
    one, two = arrays = [Array.of_files(folder, name, 2) for name in ("one", "two")]
    for dirty in (False, True):
        for array in arrays:
            if not dirty:
                array.label()
            array.start()
            write_at(array.link, 0, pattern(array.name, MIB))
            if dirty:
                array.kill()
            else:
                array.stop()
        with unchanged(*one.parts, *two.parts):
            for array, other in [(one, two), (two, one)]:
                config = array.write(file="exchanged.toml", journal=other.journal)
                for command in ("start", "clear"):
                    ujournal(command, config).expect_failed(REFUSED, "belongs to array", "array one", "array two", other.journal)
    for array in arrays:
        array.start()
        with open(array.link, "rb") as device:
            expect(device.read(MIB) == pattern(array.name, MIB), f"{array.name} holds something else")
        array.stop()


@case("a copy of a member or of the journal beside the original is refused and both paths named")
def doubled(folder, quick):
    array = Array.of_files(folder, "doubled", 3)
    array.label()
    copies = {}
    for part in array.parts:
        copies[part] = part + ".copy"
        shutil.copyfile(part, copies[part])
    with unchanged(*array.parts, *copies.values()):
        for original, in_place_of in [(array.members[0], array.members[1]), (array.members[2], array.members[0]),
                                      (array.journal, array.members[1])]:
            members = [copies[original] if member == in_place_of else member for member in array.members]
            config = array.write(file="doubled.toml", members=members)
            ujournal("start", config).expect_failed(REFUSED, original, copies[original], "one is a copy of the other")
            checked = ujournal("check", config)
            expect(checked.code == REFUSED and copies[original] in checked.out, f"{checked}")
    # A copy in the place of the original is the original, as long as no life has passed.
    array.start(config=array.write(file="copied.toml", members=[copies[array.members[0]], *array.members[1:]]))
    array.stop()


@case("a part that has shrunk by a sector or more is refused with both sizes")
def shrunk(folder, quick):
    array = Array.of_files(folder, "shrunk", 2)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("shrunk", MIB))
    array.stop()
    for part in array.parts:
        size = os.path.getsize(part)
        whole = part + ".whole"
        shutil.copyfile(part, whole)
        for less in (SECTOR, size // 2) if quick else (SECTOR, 4 * KIB, 64 * KIB, size // 2, size - 4 * KIB):
            os.truncate(part, size - less)
            with unchanged(*array.parts):
                words = ["carries no ujournal label"] if size - less < 16 * KIB else [f"it had {size // MIB}MiB"]
                ujournal("start", array.config).expect_failed(REFUSED, part, *words)
                ujournal("clear", array.config).expect_failed(REFUSED, part, *words)
        os.truncate(part, 0)
        with unchanged(*array.parts):
            ujournal("start", array.config).expect_failed(REFUSED, part, "carries no ujournal label")
        os.replace(whole, part)
    array.start()
    array.stop()


@case("a copy of a member or of the journal from one start earlier is refused, clean and dirty")
def stale(folder, quick):
    attached = {"journal": ['size = "4MiB"', 'placement = "end"']}
    kinds = [{}, {"journal": 0, "keys": Array.SMALL | attached}]
    combinations = list(itertools.product(enumerate(kinds), ("clean", "dirty")))
    for (number, options), after in [combinations[0], combinations[3]] if quick else combinations:
        array = Array.of_files(folder, f"stale{number}{after}", 3, size=8 * MIB, **options)
        array.label()
        array.start()
        write_at(array.link, 0, pattern("before", MIB))
        # A clean copy of all parts, one start earlier.
        array.stop()
        copies = {part: part + ".earlier" for part in array.parts}
        for part, copy in copies.items():
            shutil.copyfile(part, copy)
        array.start()
        write_at(array.link, MIB, pattern("after", MIB))
        block = array.block
        if after == "clean":
            array.stop()
        else:
            array.kill()
        with unchanged(*array.parts, *copies.values()):
            for part, copy in copies.items():
                members = [copy if member == part else member for member in array.members]
                journal = copy if array.journal == part else array.journal
                config = array.write(file="stale.toml", members=members, journal=journal)
                ujournal("start", config).expect_failed(REFUSED, copy, "old copy", "life 1", "life 2")
                checked = ujournal("check", config)
                expect(checked.code == REFUSED and "old copy" in checked.out, f"{checked}")
                ujournal("clear", config).expect_failed(REFUSED, copy, "old copy")
        array.start()
        if after == "dirty":
            expect_equal("the device after the takeover", block, array.block)
        with open(array.link, "rb") as device:
            expect(device.read(2 * MIB) == pattern("before", MIB) + pattern("after", MIB), "it holds something else")
        array.stop()
        # All parts together from one start earlier are a whole array: that nobody can see.
        array.start(config=array.write(file="all.toml", members=[copies[m] for m in array.members],
                                       journal=array.journal and copies[array.journal]))
        with open(array.link, "rb") as device:
            expect(device.read(MIB) == pattern("before", MIB), "it holds something else")
        array.stop()


@case("a copy of a part from before the clean stop that followed it is refused")
def stale_within(folder, quick):
    attached = {"journal": 0, "keys": Array.SMALL | {"journal": ['size = "4MiB"', 'placement = "middle"']}}
    for number, options in enumerate([{}, attached]):
        array = Array.of_files(folder, f"within{number}", 3, size=8 * MIB, **options)
        array.label()
        array.start()
        copies = {part: part + ".earlier" for part in array.parts}
        write_at(array.link, 0, pattern("before", MIB))
        ujournal("sync", array.name).expect_done()
        for part, copy in copies.items():
            shutil.copyfile(part, copy)
        write_at(array.link, 0, pattern("after", MIB))
        array.stop()
        with unchanged(*array.parts, *copies.values()):
            for part, copy in copies.items():
                members = [copy if member == part else member for member in array.members]
                journal = copy if array.journal == part else array.journal
                config = array.write(file="within.toml", members=members, journal=journal)
                for command in ("start", "check"):
                    done = ujournal(command, config)
                    expect(done.code == REFUSED and "old copy" in done.out + done.err, f"{part}: {done}")
        array.start()
        with open(array.link, "rb") as device:
            expect(device.read(MIB) == pattern("after", MIB), "it holds something else")
        array.stop()


@case("copies of all parts from one start earlier are not put under a device that waits for its daemon")
def stale_under_device(folder, quick):
    array = Array.of_files(folder, "under", 2, size=8 * MIB)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("before", MIB))
    array.stop()
    copies = {part: part + ".earlier" for part in array.parts}
    for part, copy in copies.items():
        shutil.copyfile(part, copy)
    array.start()
    write_at(array.link, 0, pattern("after", MIB))
    block = array.block
    array.kill()
    old = array.write(file="old.toml", members=[copies[m] for m in array.members], journal=copies[array.journal])
    with unchanged(*array.parts, *copies.values()):
        ujournal("start", old).expect_failed(REFUSED, block, "life 2", "life 1", "old copies")
    array.start()
    expect_equal("the device after the takeover", block, array.block)
    with open(array.link, "rb") as device:
        expect(device.read(MIB) == pattern("after", MIB), "it holds something else")
    array.stop()


@case("a key that was fixed at label time and differs now is refused, and both values are named")
def fixed_keys(folder, quick):
    array = Array.of_files(folder, "fixed", 3, keys=Array.SMALL | {"journal": ['size = "3840KiB"']})
    array.label()
    small = Array.SMALL
    with unchanged(*array.parts):
        for changes, words in [
            (dict(chunk="32KiB"), ["data.chunk is 32KiB, labelled with 64KiB"]),
            (dict(name="other"), ["name", "other", "fixed"]),
            (dict(keys=small | {"journal": ['size = "3584KiB"']}), ["journal.size is 3584KiB, labelled with 3840KiB"]),
            (dict(keys=small | {"journal": ['size = "3840KiB"'],
                                "device": [*small["device"], "block_size = 4096"]}), ["device.block_size", "4096", "512"]),
            (dict(members=array.members[:2]), ["lists 2 members, array fixed has 3: member 2 is not among them"]),
            (dict(members=array.members[:2], journal=array.members[2]), ["array fixed has 3: journal is not among them"]),
            (dict(journal=None, keys=small | {"journal": ['size = "3840KiB"']}),
             ["names no journal.device, but fixed was labelled with one"]),
        ]:
            config = array.write(file="changed.toml", **changes)
            outcome = ujournal("start", config).expect_failed(REFUSED, *words)
            if "labelled with one" not in words[-1] and "not among them" not in words[-1]:
                expect(config in outcome.err and "fixed at label time" in outcome.err, f"{outcome}")
            checked = ujournal("check", config)
            expect(checked.code == REFUSED and all(word in checked.out for word in words), f"{checked}")
    array.start()
    array.stop()


@case("a part that takes no writes is refused by every command that writes and told by check, before the first write")
def read_only(folder, quick):
    image = file_of(folder, "image", 64 * MIB)
    run("mkfs.ext4", "-q", image)
    files = [file_of(folder, name, 16 * MIB) for name in ("first", "last")]
    with loop(image) as disk, mounted(disk, os.path.join(folder, "mnt")) as point, \
            contextlib.ExitStack() as stack:
        disks = [stack.enter_context(loop(file)) for file in files]
        inside = file_of(point, "inside", 16 * MIB)
        journal = file_of(folder, "journal", 4 * MIB)
        array = Array(folder, "protected", [disks[0], inside, disks[1]], journal)

        def refused(*words):
            # Whatever comes before it in the file has not been written either.
            with unchanged(*files, inside, journal):
                for command in (["start"], ["label", "--force"], ["clear"], ["clear", "--force"]):
                    ujournal(*command, array.config).expect_failed(REFUSED, *words)
                checked = ujournal("check", array.config)
                expect(checked.code == REFUSED and "would be refused" in checked.out
                       and all(word in checked.out for word in words), f"{checked}")

        array.label()
        for protected in disks:
            run("blockdev", "--setro", protected)
            refused(f"{protected}: is read-only; make it writable: blockdev --setrw {protected}")
            run("blockdev", "--setrw", protected)
        run("mount", "-o", "remount,ro", point)
        refused(inside, "mounted read-only", "remount,rw")
        run("mount", "-o", "remount,rw", point)
        run("chattr", "+i", inside)
        refused(inside, "is marked as immutable", f"chattr -i -a {inside}")
        run("chattr", "-i", inside)
        # The array is as clean as it was.
        ujournal("check", array.config).expect_done("would start", "stopped cleanly")
        array.start()
        write_at(array.link, 0, pattern("protected", MIB))
        # A daemon that died, and a disk that became read-only behind it: refused, and taken over once it is mended.
        array.kill()
        run("blockdev", "--setro", disks[1])
        refused(f"{disks[1]}: is read-only")
        run("blockdev", "--setrw", disks[1])
        array.start()
        array.stop()


# Parts that somebody uses, and parts that are given twice.


@case("a part that is mounted, swapped to, or has a device built on it is refused by every command")
def in_use(folder, quick):
    array = Array.of_files(folder, "held", 1)
    array.label()
    array.start()
    run("mkfs.ext4", "-q", array.link)
    array.stop()
    # With one member, its data lies in one piece 1 MiB behind its beginning.
    point = os.path.join(folder, "mnt")
    with loop(array.members[0]) as disk:
        config = array.write(file="disk.toml", members=[disk])
        with loop(array.members[0], "--offset", MIB) as data:
            everywhere(array, array.config, REFUSED, array.members[0], "is built on it")
            with mounted(data, point):
                everywhere(array, array.config, REFUSED, array.members[0], "is built on it")
        everywhere(array, array.config, REFUSED, array.members[0], os.path.basename(disk), "is built on it")
        with loop(disk, "--offset", MIB) as above:
            everywhere(array, config, REFUSED, disk, os.path.basename(above), "is built on it")
        sectors = int(run("blockdev", "--getsz", disk))
        run("dmsetup", "--noudevsync", "--noudevrules", "create", "above", "--table", f"0 {sectors} linear {disk} 0")
        try:
            everywhere(array, config, REFUSED, disk, "dm-", "is built on it")
        finally:
            run("dmsetup", "--noudevsync", "--noudevrules", "remove", "above")
        with open(disk, "r+b"):
            pass
    plain = file_of(folder, "plain", 16 * MIB)
    with loop(plain) as disk:
        run("mkfs.ext4", "-q", disk)
        config = array.write(file="plain.toml", members=[disk])
        with mounted(disk, point):
            for command in (["label"], ["label", "--force"], ["start"], ["clear", "--force"]):
                ujournal(*command, config).expect_failed(REFUSED, disk, "mounted at", point)
        run("mkswap", disk)
        run("swapon", disk)
        try:
            for command in (["label"], ["label", "--force"], ["start"]):
                ujournal(*command, config).expect_failed(REFUSED, disk, "swap")
        finally:
            run("swapoff", disk)
        holder = subprocess.Popen(["flock", array.members[0], "sleep", "60"])
        try:
            wait_until("the lock", lambda: subprocess.run(["flock", "-n", array.members[0], "true"], check=False).returncode)
            everywhere(array, array.config, REFUSED, array.members[0], "in use by")
        finally:
            kill_family(holder)
    array.start()
    array.stop()


def kill_family(process):
    children = run("ps", "-o", "pid=", "--ppid", process.pid).split() if process.poll() is None else []
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_until("its children's end", lambda: not any(is_alive(int(pid)) for pid in children))


def everywhere(array, config, code, *words):
    """Every command that opens the parts refuses, and nothing changes."""
    with unchanged(*array.parts):
        for command in (["start"], ["label", "--force"], ["clear"], ["clear", "--force"]):
            ujournal(*command, config).expect_failed(code, *words)
        checked = ujournal("check", config)
        expect(checked.code == code and all(word in checked.out for word in words), f"{checked}")


@case("parts that overlap through a link, a partition or a loop device are refused by every command")
def overlapping(folder, quick):
    array = Array.of_files(folder, "overlap", 2)
    array.label()
    first = array.members[0]
    soft, hard = os.path.join(folder, "soft"), os.path.join(folder, "hard")
    os.symlink(first, soft)
    os.link(first, hard)
    image = file_of(folder, "image", 40 * MIB)
    partition(image)
    with contextlib.ExitStack() as stack:
        over = stack.enter_context(loop(first))
        disk = stack.enter_context(loop(image, "--partscan"))
        one, two = disk + "p1", disk + "p2"
        wait_until("the partitions", lambda: os.path.exists(two))
        part_of_first = stack.enter_context(loop(first, "--offset", MIB))
        with unchanged(image, *array.parts):
            for members, words in [
                ([first, soft], [first, soft, "overlap", "both are inode"]),
                ([soft, hard], [soft, hard, "overlap", "both are inode"]),
                ([first, over], [first, over, "overlap", f"{over} is a loop device over the other"]),
                ([part_of_first, hard], [part_of_first, hard, "overlap", "is a loop device over the other"]),
                ([over, part_of_first], [over, part_of_first, "overlap", "both lie on inode"]),
                ([disk, one], [disk, one, "overlap", f"{one} is a partition of the other"]),
                ([two, disk], [two, disk, "overlap", f"{two} is a partition of the other"]),
                ([image, two], [image, two, "overlap", f"{two} is a loop device over the other"]),
            ]:
                config = array.write(file="overlap.toml", members=members)
                for command in (["label"], ["label", "--force"], ["start"], ["clear", "--force"]):
                    ujournal(*command, config).expect_failed(REFUSED, *words)
                checked = ujournal("check", config)
                expect(checked.code == REFUSED and "overlap" in checked.out, f"{checked}")
            for journal in (hard, over):
                config = array.write(file="overlap.toml", journal=journal)
                ujournal("label", "--force", config).expect_failed(REFUSED, first, journal, "overlap")
        # Neighbours on one disk are allowed, the journal beside the data as well.
        neighbours = Array(folder, "neighbours", [one], two)
        ujournal("label", neighbours.config).expect_done()
        neighbours.start()
        fio_verify(neighbours.link, size="4m")
        neighbours.stop()


def partition(image):
    script = "label: gpt\nstart=2048, size=34816\nstart=36864, size=34816\n"
    subprocess.run(["sfdisk", "-q", image], input=script, text=True, check=True, capture_output=True)


# Label and clear.


FILESYSTEMS = [
    ("ext4 filesystem", ["mkfs.ext4", "-q"], 16),
    ("XFS filesystem", ["mkfs.xfs", "-q"], 320),
    ("FAT", ["mkfs.vfat"], 16),
    ("btrfs filesystem", ["mkfs.btrfs", "-q"], 128),
    ("ext2 filesystem", ["mkfs.ext2", "-q"], 16),
    ("F2FS filesystem", ["mkfs.f2fs", "-q"], 64),
    ("exFAT filesystem", ["mkfs.exfat"], 16),
    ("NTFS filesystem", ["mkfs.ntfs", "-q", "-F"], 16),
    ("swap", ["mkswap"], 16),
    ("LUKS", ["cryptsetup", "luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000",
              "--key-file", "/proc/version"], 20),
]


@case("a disk that carries a filesystem, a partition table or a label is not labelled without --force")
def carries(folder, quick):
    array = Array.of_files(folder, "carries", 2)
    victim = array.members[1]

    def check(*words):
        with unchanged(*array.parts):
            outcome = ujournal("label", array.config).expect_failed(REFUSED, victim, *words)
            expect("--force" in outcome.err, f"no word of --force: {outcome}")

    for name, command, size in FILESYSTEMS[:3] if quick else FILESYSTEMS:
        file_of(folder, "carries.member1", size * MIB)
        run(*command, victim)
        check("carries", name)
    file_of(folder, "carries.member1", 40 * MIB)
    partition(victim)
    check("carries", "partition table")
    # What is left of a GPT whose beginning was overwritten: its second header at the end.
    write_at(victim, 0, bytes(MIB))
    check("carries", "GPT")
    file_of(folder, "carries.member1", 16 * MIB)
    subprocess.run(["sfdisk", "-q", victim], input="label: dos\n2048,\n", text=True, check=True, capture_output=True)
    check("carries", "partition table")
    # The journal is looked at like the members.
    file_of(folder, "carries.member1", 16 * MIB)
    run("mkfs.ext4", "-q", array.journal)
    with unchanged(*array.parts):
        ujournal("label", array.config).expect_failed(REFUSED, array.journal, "ext", "--force")
    array.label("--force")
    # What was there is gone for good: not a trace of a filesystem under the label.
    array.start()
    array.stop()
    # Labels of our own.
    victim = array.members[0]
    check("member 0", "carries", "stopped cleanly")
    array.start()
    array.kill()
    with unchanged(*array.parts):
        for options in ([], ["--force"]):
            ujournal("label", array.config, *options).expect_failed(REFUSED, "carries", "its device", "is still there")
    array.start()
    array.stop()
    dirty_without_device(array)
    check("member 0", "carries", "NOT stopped cleanly")
    other = array.write(file="other.toml", name="other")
    with unchanged(*array.parts):
        ujournal("label", other).expect_failed(REFUSED, "member 0 of the ujournal array carries", "--force")
    ujournal("label", "--force", other).expect_done("other: labelled as")
    with unchanged(*array.parts):
        ujournal("start", array.config).expect_failed(REFUSED, "name", "carries", "other", "fixed at label time")


@case("parts that are too small for the array are refused with what they have and what is needed")
def too_small(folder, quick):
    array = Array.of_files(folder, "small", 2)
    least = 8 * (128 + 16) * KIB + 256 * KIB + 2 * MIB + 8 * KIB
    with unchanged(*array.parts):
        tiny = file_of(folder, "tiny", 128 * KIB)
        config = array.write(file="small.toml", members=[array.members[0], tiny])
        ujournal("label", config).expect_failed(REFUSED, tiny, "has 128KiB", "at least")
        short = file_of(folder, "short", least - 4 * KIB)
        config = array.write(file="small.toml", journal=short)
        ujournal("label", config).expect_failed(
            REFUSED, short, f"has {least // KIB - 4}KiB", f"at least {least // KIB}KiB", "lower device.max_io")
        config = array.write(file="small.toml", keys=Array.SMALL | {"journal": ['size = "5MiB"']})
        ujournal("label", config).expect_failed(REFUSED, array.journal, "has 4MiB", "journal.size is 5MiB")
        config = array.write(file="small.toml", journal=None,
                             keys=Array.SMALL | {"journal": ['size = "64MiB"', 'placement = "end"']})
        ujournal("label", config).expect_failed(REFUSED, array.members[0], "has 16MiB", "at least",
                                                      "because of journal.size, which is 64MiB")
        # A sparse journal that its filesystem cannot hold.
        point = os.path.join(folder, "full")
        os.mkdir(point)
        run("mount", "-t", "tmpfs", "-o", "size=1m", "none", point)
        crowded = file_of(point, "journal", 4 * MIB)
        config = array.write(file="small.toml", journal=crowded)
        for force in ([], ["--force"]):
            ujournal("label", *force, config).expect_failed(REFUSED, crowded, "the journal needs 4.0 MiB", "has 1.0 MiB free")
        run("umount", point)
    exact = file_of(folder, "exact", least)
    array = Array(folder, "exact", array.members, exact)
    array.label()
    array.start()
    fio_verify(array.link, size="8m")
    array.stop()
    # What the ring was labelled for is all that it can take.
    larger = array.write(file="larger.toml", keys=Array.SMALL | {"device": ['max_io = "512KiB"']})
    with unchanged(*array.parts):
        ujournal("start", larger).expect_failed(REFUSED, larger, "device.max_io", str(512 * KIB), "lower it")


@case("a label that was cut off at any moment can be labelled again, and cannot be started")
def label_cut_off(folder, quick):
    # A flush takes so long that each step can be met.
    seen = set()
    status = os.path.join(folder, "drives")

    def flushes():
        with open(status, encoding="ascii") as file:
            return sum(int(line.split()[-1]) for line in file.read().splitlines() if line.startswith("drive "))

    options = ["--size", "8MiB", "--flush-delay", "30", "--status", status, "--status-interval", "2"]
    with drives(*options, count=3) as [one, two, journal]:
        array = Array(folder, "forming", [one, two], journal)
        before = flushes()
        array.label()
        time.sleep(0.1)
        whole = flushes() - before
        expect(whole >= 15, f"a label of three parts took only {whole} flushes")
        ujournal("clear", array.config).expect_done()
        cuts = 4 if quick else whole
        for number in range(cuts):
            time.sleep(0.1)
            cut_at = flushes() + number * whole // cuts + random.randrange(max(whole // cuts, 1))
            process = subprocess.Popen([UJOURNAL, "label", array.config], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            while flushes() < cut_at and process.poll() is None:
                time.sleep(0.001)
            done = process.poll() is not None
            process.kill()
            process.communicate()
            started = ujournal("start", array.config)
            if started.code == 0:
                # It came to its end, or so near to it that all parts say so.
                seen.add("ready")
                array.stop()
                ujournal("clear", array.config).expect_done()
                continue
            expect(not done, f"label had ended, but {started}")
            started.expect_failed(REFUSED)
            forming = "run label again" in started.err
            seen.add("forming" if forming else "blank")
            expect(forming or "carries no ujournal label" in started.err, f"{started}")
            ujournal("clear", array.config).expect_failed(REFUSED)
            array.label()
            ujournal("check", array.config).expect_done("would start")
            ujournal("clear", array.config).expect_done()
    expect("forming" in seen, f"the cuts met only: {seen}")


@case("clear of a dirty array is refused, --force takes the labels off, and what is no label stays")
def clear_dirty(folder, quick):
    array = Array.of_files(folder, "cleared", 2)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("cleared", MIB))
    before = sha256(array.link)
    array.kill()
    with unchanged(*array.parts):
        for options in ([], ["--force"]):
            ujournal("clear", array.config, *options).expect_failed(REFUSED, "cleared", "its device", "is still there")
    array.start()
    expect_equal("sha256 of the device", before, sha256(array.link))
    array.stop()
    dirty_without_device(array)
    with unchanged(*array.parts):
        ujournal("clear", array.config).expect_failed(REFUSED, "cleared", "not stopped cleanly", "clear --force")
    # A configuration that names a disk which is no part of the array.
    innocent = file_of(folder, "innocent", 16 * MIB)
    run("mkfs.ext4", "-q", innocent)
    other = Array.of_files(folder, "other", 1)
    other.label()
    with unchanged(innocent, *other.parts, *array.parts[1:]):
        for stranger, word in [(innocent, "carries no ujournal label"), (other.members[0], "ujournal array other")]:
            first = array.members[0] + ".copy"
            shutil.copyfile(array.members[0], first)
            config = array.write(file="innocent.toml", members=[first, stranger], journal=array.journal + ".gone")
            ujournal("clear", "--force", config).expect_failed(
                FAILED, "labels taken off 1 of 3 parts", stranger, word, "journal.gone: there is no such disk or file")
            ujournal("dump", first).expect_failed(REFUSED, "no ujournal superblock")
    ujournal("clear", "--force", array.config).expect_done("labels taken off")
    with unchanged(*array.parts):
        ujournal("start", array.config).expect_failed(REFUSED, "carries no ujournal label")
    array.label()


def dirty_without_device(array):
    """As after a power cut: dirty, and no device of a dead daemon. Copies are put back after a clean stop."""
    array.start()
    copies = []
    for part in array.parts:
        copies.append(part + ".dirty")
        shutil.copyfile(part, copies[-1])
    array.stop()
    for part, copy in zip(array.parts, copies):
        os.replace(copy, part)


# Machines.


@case("a machine without ublk, without io_uring or without permission is told with its remedy")
def machine(folder, quick):
    array = Array.of_files(folder, "lacking", 2)
    for path in [array.config, *array.parts]:
        os.chmod(path, 0o644)
    array.label()
    nobody = 65534
    with unchanged(*array.parts):
        os.rename("/dev/ublk-control", "/dev/ublk-control.away")
        try:
            for options in ([], ["--foreground"]):
                ujournal("start", array.config, *options).expect_failed(
                    FAILED, "no ublk driver", "/dev/ublk-control", "modprobe ublk_drv")
        finally:
            os.rename("/dev/ublk-control.away", "/dev/ublk-control")
        with setting("/proc/sys/kernel/io_uring_disabled", "2"):
            for options in ([], ["--foreground"]):
                ujournal("start", array.config, *options).expect_failed(
                    FAILED, "io_uring", "sysctl kernel.io_uring_disabled=0")
        ujournal("start", array.config, user=nobody).expect_failed(FAILED, "start needs root", "sudo")
        for command in (["label"], ["label", "--force"], ["clear"], ["clear", "--force"]):
            ujournal(*command, array.config, user=nobody).expect_failed(
                FAILED, array.members[0], "cannot be opened", "permission", "ermission denied")
        os.chmod(array.members[0], 0o600)
        for command in (["check", array.config], ["dump", array.members[0]]):
            ujournal(*command, user=nobody).expect_failed(FAILED, array.members[0], "cannot be opened", "ermission denied")
        os.chmod(array.config, 0o600)
        ujournal("start", array.config, user=nobody).expect_failed(FAILED, array.config, "ermission denied")
    with setting("/proc/sys/kernel/io_uring_disabled", "1"):
        array.start()
    for command in ("stop", "sync", "status"):
        ujournal(command, "lacking", user=nobody).expect_failed(FAILED, "lacking", "permission denied", "sudo")
    array.stop()
    for command in ("stop", "sync", "status"):
        ujournal(command, "lacking").expect_failed(
            FAILED, "no array lacking is running; ujournal list shows those that are")


@contextlib.contextmanager
def setting(path, value):
    with open(path, encoding="ascii") as file:
        before = file.read()
    with open(path, "w", encoding="ascii") as file:
        file.write(value)
    try:
        yield
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(before)


if __name__ == "__main__":
    sys.exit(main(__doc__))
