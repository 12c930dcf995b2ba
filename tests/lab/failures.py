#!/usr/bin/env python3
"""What becomes of a running array whose parts return errors, and how it ends: on a kernel with ublk.

    ci/lab --mem 2G -- tests/lab/failures.py [--quick] [--seed N] [--list] [WORD...]

The parts that fail are device-mapper devices whose writes and flushes fail from one moment on, and work
again later. Prints one line for each case. --quick runs every case with smaller counts.

Exit codes: 0 every case passed; 1 some did not; 2 wrong usage.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from cases import (FAILED, MIB, PATIENCE, REFUSED, SECTOR, Array, case, expect, expect_equal, file_of, is_alive, loop, main, note,
                   pattern, run, sha256, ujournal, wait_until, write_at)


class Brittle:
    """A device whose writes and flushes fail while it is broken."""

    def __init__(self, name, below, sectors):
        self.name, self.below, self.sectors = name, below, sectors
        self.path = f"/dev/mapper/{name}"
        self._dmsetup("create", name, "--table", self._linear())
        run("dmsetup", "mknodes")

    def _linear(self):
        return f"0 {self.sectors} linear {self.below} 0"

    @staticmethod
    def _dmsetup(command, name, *rest):
        run("dmsetup", "--noudevsync", "--noudevrules", command, name, *rest)

    def _become(self, table):
        run("dmsetup", "suspend", "--noflush", "--nolockfs", self.name)
        run("dmsetup", "load", self.name, "--table", table)
        run("dmsetup", "resume", "--noudevsync", "--noudevrules", self.name)

    def break_down(self):
        self._become(f"0 {self.sectors} flakey {self.below} 0 0 1 1 error_writes")

    def mend(self):
        self._become(self._linear())

    def remove(self):
        self._dmsetup("remove", self.name)


@contextlib.contextmanager
def brittle_array(folder, name, which, keys=None):
    """An array of two members and a journal, one of which, `which`, is brittle while it lasts."""
    files = [file_of(folder, f"{name}{i}", size) for i, size in enumerate((24 * MIB, 24 * MIB, 8 * MIB))]
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(loop(file)) for file in files]
        brittle = Brittle(name, disks[which], os.path.getsize(files[which]) // SECTOR)
        disks[which] = brittle.path
        array = Array(folder, name, disks[:2], disks[2], keys=keys)
        array.label()
        array.start()
        yield array, brittle
        brittle.remove()


def fill_until_it_waits(array, size):
    """Writes more than the journal takes; the writer, which waits, and the data that is synced before it."""
    synced = pattern("synced", MIB)
    write_at(array.block, 0, synced)
    writer = subprocess.Popen(["dd", "if=/dev/urandom", f"of={array.block}", "bs=64k", "seek=32", f"count={size // (64 << 10)}",
                               "oflag=direct", "conv=notrunc"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)

    def waits():
        used = array.status()["journal"]["used"]
        time.sleep(0.7)
        return used > 3 * MIB and array.status()["journal"]["used"] == used
    wait_until("the writer waits for space", waits, 30)
    expect(writer.poll() is None, "the writer was not held up")
    return writer, synced


@case("stop --force ends although writers wait for a member that takes nothing, and loses nothing")
def forced(folder, _quick):
    with brittle_array(folder, "forced", 1, {"replay": ['age = "100ms"']}) as (array, member):
        member.break_down()
        writer, synced = fill_until_it_waits(array, 20 * MIB)
        expect_equal("state", "DEGRADED", array.status()["state"])
        began = time.monotonic()
        ujournal("stop", "--force", "forced").expect_failed(FAILED, "stays dirty")
        note(f"stop --force took {time.monotonic() - began:.2f} s")
        expect(writer.wait(PATIENCE) != 0, "the writer was not told")
        expect(not os.path.lexists(array.link), "the device is still there")
        member.mend()
        array.start()
        with open(array.link, "rb") as device:
            expect(device.read(MIB) == synced, "what had been synced is not there")
        array.stop()


@case("SIGTERM ends the daemon of an array whose member fails, and the next start goes on")
def terminated(folder, _quick):
    with brittle_array(folder, "ill", 0, {"replay": ['age = "100ms"']}) as (array, member):
        member.break_down()
        synced = pattern("ill", MIB)
        write_at(array.block, 0, synced)
        wait_until("the failure is noticed", lambda: array.status()["state"] == "DEGRADED", 20)
        pid = array.pid
        os.kill(pid, signal.SIGTERM)
        wait_until("the daemon's end", lambda: not is_alive(pid), 40)
        member.mend()
        array.start()
        with open(array.link, "rb") as device:
            expect(device.read(MIB) == synced, "what had been synced is not there")
        before = sha256(array.link)
        array.stop()
        array.start("--clear-error")
        expect_equal("sha256 of the device", before, sha256(array.link))
        array.stop()


@case("SIGTERM while a reader keeps the device busy leaves it within the time that the README gives")
def terminated_while_read(folder, _quick):
    array = Array.of_files(folder, "busy", 2, size=24 * MIB)
    array.label()
    array.start()
    write_at(array.block, 0, pattern("busy", 8 * MIB))
    reader = subprocess.Popen(["fio", "--name=read", f"--filename={array.block}", "--rw=randread", "--bs=4k", "--iodepth=16",
                               "--ioengine=io_uring", "--direct=1", "--time_based", "--runtime=60"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    pid = array.pid
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    wait_until("the daemon's end", lambda: not is_alive(pid), 25)
    note(f"it took {time.monotonic() - began:.2f} s")
    array.start()
    expect_equal("the kind of start", "takeover", array.status()["recovery"]["kind"])
    expect(reader.poll() is None, "the reader did not go on")
    reader.terminate()
    reader.wait(PATIENCE)
    array.stop()


@case("a journal that fails, whenever it does, is remembered: the next start refuses writes until --clear-error")
def journal_fails(folder, _quick):
    for when in ("serving", "stopping"):
        name = f"dead-{when}"
        with brittle_array(folder, name, 2, {"replay": ['age = "1h"', 'idle = "1h"']}) as (array, journal):
            write_at(array.block, 0, pattern(when, MIB))
            block = array.block
            journal.break_down()
            if when == "serving":
                # Whether the write is told its error or the flush behind it, no sector of it counts.
                failed = subprocess.run(["dd", "if=/dev/urandom", f"of={block}", "bs=64k", "count=4", "oflag=direct",
                                         "conv=notrunc,fsync"], check=False, capture_output=True)
                expect(failed.returncode != 0, "a write was taken by a journal that is dead")
                wait_until("it is noticed", lambda a=array: a.status()["state"] == "FAILED", 20)
                pid = array.pid
                os.kill(pid, signal.SIGTERM)
                wait_until("the daemon's end", lambda p=pid: not is_alive(p), 40)
            else:
                ujournal("stop", "--force", name).expect_failed(FAILED)
            journal.mend()
            array.start()
            status = array.status()
            expect_equal(f"state after it failed while {when}", "FAILED", status["state"])
            refused = subprocess.run(["dd", "if=/dev/zero", f"of={array.block}", "bs=4k", "count=1", "oflag=direct",
                                      "conv=notrunc"], check=False, capture_output=True)
            expect(refused.returncode != 0, "a FAILED array took a write")
            with open(array.block, "rb") as device:
                expect(device.read(MIB) == pattern(when, MIB), "what had been synced is not there")
            pid = array.pid
            os.kill(pid, signal.SIGTERM)
            wait_until("the daemon's end", lambda p=pid: not is_alive(p), 40)
            array.start("--clear-error")
            write_at(array.block, MIB, pattern("after", MIB))
            array.stop()


@case("a member file that somebody cuts off is told of, and the array is not called clean")
def cut_off(folder, quick):
    array = Array.of_files(folder, "cut", 2, size=16 * MIB)
    array.label()
    array.start()
    write_at(array.link, 0, pattern("all of it", 16 * MIB))
    ujournal("sync", array.name).expect_done()
    member = array.members[1]
    os.truncate(member, 4 * MIB)
    told = f"{member}: somebody has cut it off at {4 * MIB} bytes, expected {16 * MIB}"
    wait_until("it is in the log", lambda: told in open(f"/run/ujournal/{array.name}.log", encoding="utf-8").read(), 10)
    expect(any(told in warning for warning in array.status()["warnings"]), "status does not warn")
    # What goes home behind the new end makes the file longer again, but not what it was.
    write_at(array.link, 0, pattern("again", 16 * MIB))
    ujournal("sync", array.name)
    ujournal("stop", array.name).expect_failed(FAILED, told, "stays dirty")
    ujournal("start", array.config).expect_failed(REFUSED, member)
    os.truncate(member, 16 * MIB)
    array.start()
    expect_equal("state at the next start", "DEGRADED", array.status()["state"])
    array.stop()


if __name__ == "__main__":
    sys.exit(main(__doc__))
