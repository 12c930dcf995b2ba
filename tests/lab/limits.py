#!/usr/bin/env python3
"""What an array does at its limits, and what its device says of itself: on a kernel with ublk.

    ci/lab --mem 3G -- tests/lab/limits.py [--quick] [--seed N] [--list] [WORD...]

The smallest journal under slow members, the memory of the daemon, every chunk size, both block sizes,
discards and zeroes, the queue's attributes, signals, forced stops, and every file in target-configs/.
Prints one line for each case, with figures where something was measured. --quick runs every case with
smaller counts.

Exit codes: 0 every case passed; 1 some did not; 2 wrong usage.
"""

import contextlib
import itertools
import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

sys.dont_write_bytecode = True
from cases import (BLOCK_OPS, FIO_VERIFY, GIB, KIB, MIB, REFUSED, ROOT, SECTOR, UJOURNAL, USAGE, Array, Failed, case, drives,
                   expect, expect_equal, expect_waiting, file_of, fio_verify, is_alive, loop, main, mounted, note, pattern, run, sha256,
                   ujournal, unchanged, wait_until, write_at)

# Beside the window, the requests, the map and the journal's checksums a daemon may take this much.
MEMORY_BESIDE = 32 * MIB


class Watch(threading.Thread):
    """Calls `look` every so often until it is left, and keeps the largest answer."""

    def __init__(self, look, pause):
        super().__init__(daemon=True)
        self.look, self.pause = look, pause
        self.most, self.looks = 0, 0
        self.error = None
        self.ending = threading.Event()

    def run(self):
        try:
            while not self.ending.is_set():
                self.most = max(self.most, self.look())
                self.looks += 1
                self.ending.wait(self.pause)
        except (OSError, Failed) as error:
            self.error = error

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.join(60)
        expect(not self.is_alive(), "what is watched hangs")
        expect(self.error is None, f"while watching: {self.error}")
        expect(self.looks > 0, "nothing was seen")


def resident(pid):
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+([0-9]+) kB", status.read())[1]) * KIB


def memory_limit(window, depth, max_io, extents, journal):
    return window + depth * max_io + 64 * extents + journal // 1024 + MEMORY_BESIDE


class Reader:
    """Reads 4 KiB at random places, past the page cache."""

    def __init__(self, device):
        self.descriptor = os.open(device, os.O_RDONLY | os.O_DIRECT)
        self.size = os.lseek(self.descriptor, 0, os.SEEK_END)
        self.buffer = mmap.mmap(-1, 4 * KIB)

    def read(self):
        """How long one takes, in seconds."""
        began = time.monotonic()
        at = random.randrange(self.size // (4 * KIB)) * 4 * KIB
        expect_equal("bytes read", 4 * KIB, os.preadv(self.descriptor, [self.buffer], at))
        return time.monotonic() - began

    def close(self):
        os.close(self.descriptor)


# A full journal, and memory.


@case("the smallest journal takes 20 times its size under slow members, and readers get through")
def full_journal(folder, quick):
    # More tags than writers, or a reader waits for a tag behind them all, in the kernel.
    max_io, depth, delay = (128 * KIB, 128, 40) if quick else (MIB, 128, 200)
    keys = {
        "device": [f"queue_depth = {depth}", f'max_io = "{max_io // KIB}KiB"'],
        "memory": ['window = "16MiB"', 'extents = "64Ki"'],
        "journal": ['size = "4KiB"'],
    }
    file = file_of(folder, "journal", 32 * MIB)
    with drives("--size", "96MiB", "--write-delay", delay, count=2) as members, loop(file) as journal:
        array = Array(folder, "full", members, journal, keys=keys)
        refused = ujournal("label", array.config).expect_failed(USAGE, "journal.size", "the minimum")
        least = int(re.search(r"a size from ([0-9]+)KiB", refused.err)[1]) * KIB
        below = array.write(file="below.toml", keys=keys | {"journal": [f'size = "{least // KIB - 4}KiB"']})
        with unchanged(file):
            ujournal("label", below).expect_failed(USAGE, f"{least // KIB}KiB", f"{least // KIB - 4}KiB")
        array.keys = keys | {"journal": [f'size = "{least // KIB}KiB"']}
        array.write()
        array.label()
        array.start()
        pid = array.pid
        limit = memory_limit(16 * MIB, depth, max_io, 64 * KIB, least)
        reader = Reader(array.link)
        slowest = 0.0
        began = time.monotonic()
        # Two kinds of writers at once, 64 in all.
        with Watch(lambda: resident(pid), 0.1) as memory, Watch(reader.read, 0.05) as reading:
            half = 20 * least // 2
            jobs = [subprocess.Popen(["fio", f"--name={name}", f"--filename={array.link}", "--ioengine=io_uring",
                                      "--direct=1", f"--size={half}", f"--offset={offset}", "--verify=crc32c",
                                      "--verify_state_save=0", "--verify_fatal=1", "--output-format=json", *options],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    for name, offset, options in [
                        ("large", 0, ["--rw=write", f"--bs={max_io}", "--iodepth=32", f"--randseed={random.randrange(1 << 31)}"]),
                        ("mixed", half, ["--rw=randwrite", "--bssplit=512/20:4k/30:64k/30:128k/20", "--iodepth=32",
                                         "--fsync=32", f"--randseed={random.randrange(1 << 31)}"])]]
            for job in jobs:
                output, _ = job.communicate(timeout=900)
                expect(job.returncode == 0, f"fio ended with {job.returncode}: {output}")
                slowest = max(slowest, json.loads(output[output.index("{"):])["jobs"][0]["write"]["clat_ns"]["max"] / 1e9)
        took = time.monotonic() - began
        reader.close()
        status = array.status()
        expect_equal("errors", {}, {clause: count for clause, count in status["errors"].items() if count})
        round_took = took / max(status["replay"]["rounds"], 1)
        note(f"{20 * least / MIB:.0f} MiB through a journal of {least // KIB} KiB in {took:.1f} s and "
             f"{status['replay']['rounds']} rounds; the slowest write took {slowest:.2f} s, the slowest of {reading.looks} "
             f"reads {reading.most:.2f} s; "
             f"memory at most {memory.most / MIB:.1f} MiB of {limit / MIB:.1f} MiB in {memory.looks} samples")
        expect(reading.most <= 2 * round_took + 2, f"a read took {reading.most:.1f} s, a round {round_took:.2f} s on average")
        expect(memory.most <= limit * 1.05, f"{memory.most} bytes of memory, expected at most {limit} and 5 %")
        before = sha256(array.block)
        array.stop()
        array.start()
        expect_equal("sha256 of the device", before, sha256(array.block))
        array.stop()


@case("the memory of a daemon stays within its formula, with few and with many extents")
def memory(folder, quick):
    for window, extents, depth, max_io in [(16, 4 * KIB, 8, 64 * KIB)] if quick else \
            [(16, 4 * KIB, 8, 64 * KIB), (64, 256 * KIB, 128, 512 * KIB), (16, 1024 * KIB, 256, 128 * KIB)]:
        keys = {"device": [f"queue_depth = {depth}", f'max_io = "{max_io // KIB}KiB"'],
                "memory": [f'window = "{window}MiB"', f"extents = {extents}"],
                "replay": ['age = "1h"', 'idle = "1h"', "fill = 0.95"]}
        array = Array.of_files(folder, "memory", 2, size=160 * MIB, journal=128 * MIB, keys=keys)
        array.label()
        array.start()
        limit = memory_limit(window * MIB, depth, max_io, extents, 128 * MIB)
        pid = array.pid
        with Watch(lambda: resident(pid), 0.1) as memory:
            # Single sectors far apart: each is an extent of its own.
            run("fio", "--name=sectors", f"--filename={array.link}", "--rw=randwrite", "--bs=512", "--ioengine=io_uring",
                "--direct=1", "--iodepth=64", "--time_based", "--runtime=3" if quick else "--runtime=15", "--size=200m",
                f"--randseed={random.randrange(1 << 31)}", "--minimal", timeout=120)
            most = array.status()["map"]["extents"]
        note(f"{most} of {extents} extents; memory at most {memory.most / MIB:.1f} MiB of {limit / MIB:.1f} MiB")
        expect(memory.most <= limit * 1.05, f"{memory.most} bytes of memory, expected at most {limit} and 5 %")
        ujournal("label", "--force", array.config).expect_failed(REFUSED, "memory is running", array.members[0])
        array.stop()


# Layouts and requests.


@case("every chunk size works on three members of unequal size, and holds after stop and start")
def chunks(folder, quick):
    placements = itertools.cycle([None, "end", "start", "middle"])
    least = (11 if quick else 20) * MIB
    for chunk in (4 << shift for shift in range(9)):
        placement = next(placements)
        members = [file_of(folder, f"unequal{i}", size) for i, size in enumerate((least + MIB + 4608, least + 512, 2 * least))]
        journal = None if placement else file_of(folder, "journal", 4 * MIB)
        keys = dict(Array.SMALL)
        if placement:
            keys["journal"] = ['size = "12MiB"', f'placement = "{placement}"']
        array = Array(folder, "chunks", members, journal, chunk=f"{chunk}KiB", keys=keys)
        array.label("--force")
        array.start()
        size = array.size()
        expect_equal(f"bytes beyond whole stripes of {chunk} KiB", 0, size % (3 * chunk * KIB))
        most = 3 * (least - 2 * MIB - (4 * MIB if placement else 0))
        expect(most - 3 * (chunk + 8) * KIB - 3 * chunk * KIB <= size <= most, f"the device has {size} bytes of {most}")
        fio_verify(array.link, "2m" if quick else "20m")
        run(BLOCK_OPS, array.link, MIB, 8 * MIB, "--seconds", 1 if quick else 8, "--seed", random.randrange(1 << 30),
            "--discard-zeroes")
        expect_equal("minimum_io_size", str(chunk * KIB), array.queue("minimum_io_size"))
        # The last sectors as well.
        write_at(array.link, size - 3 * KIB, pattern(chunk, 3 * KIB))
        before = sha256(array.link)
        array.stop()
        array.start()
        expect_equal(f"sha256 of the device with chunks of {chunk} KiB", before, sha256(array.link))
        array.stop()


@case("every kind of request at once is verified on a device with blocks of 512 bytes")
def requests_512(folder, quick):
    array = Array.of_files(folder, "requests", 2, size=40 * MIB)
    array.label()
    array.start()
    run(FIO_VERIFY, array.link, 1 if quick else 60, random.randrange(1 << 20), "--discard-zeroes", timeout=300)
    array.stop()


@case("blocks of 4096 bytes: on such disks they are required, and nothing smaller is taken")
def blocks_4096(folder, quick):
    # mkfs.xfs takes nothing below 300 MB.
    files = [file_of(folder, f"native{i}", 24 * MIB if quick else 200 * MIB) for i in range(3)]
    small = Array.SMALL
    large = small | {"device": [*small["device"], "block_size = 4096"]}
    with contextlib.ExitStack() as stack:
        native = [stack.enter_context(loop(file, "--sector-size", 4096)) for file in files]
        array = Array(folder, "native", native[:2], native[2])
        with unchanged(*files):
            ujournal("label", array.config).expect_failed(REFUSED, native[0], "4096 bytes", "device.block_size is 512", "set it to 4096")
        array = Array(folder, "native", native[:2], native[2], keys=large)
        array.label()
        array.start()
        expect_equal("logical_block_size", "4096", array.queue("logical_block_size"))
        with open(array.link, "rb") as device:
            direct = os.open(array.link, os.O_RDONLY | os.O_DIRECT)
            with contextlib.suppress(OSError):
                os.preadv(direct, [mmap.mmap(-1, 512)], 512)
                raise Failed("a read of 512 bytes was taken")
            os.close(direct)
            del device
        run("fio", "--name=native", f"--filename={array.link}", "--rw=randwrite", "--bssplit=4k/40:12k/20:64k/40",
            "--ioengine=io_uring", "--iodepth=16", "--direct=1", "--fsync=16", "--size=8m" if quick else "--size=40m",
            "--verify=crc32c", "--verify_state_save=0", "--minimal")
        run("mkfs.xfs", "-q", "-f", array.link) if not quick else run("mkfs.ext4", "-q", "-F", array.link)
        before = sha256(array.link)
        array.stop()
    with contextlib.ExitStack() as stack:
        # On disks with smaller blocks it keeps its own.
        disks = [stack.enter_context(loop(file)) for file in files]
        array = Array(folder, "native", disks[:2], disks[2], keys=large)
        array.start()
        expect_equal("logical_block_size", "4096", array.queue("logical_block_size"))
        expect_equal("sha256 of the device", before, sha256(array.link))
        array.stop()
        ujournal("clear", array.config).expect_done()
        Array(folder, "native", disks[:2], disks[2]).label()
    with contextlib.ExitStack() as stack:
        # An array of 512-byte blocks whose member turns out to need more; its journal may.
        native = stack.enter_context(loop(files[0], "--sector-size", 4096))
        rest = [stack.enter_context(loop(file)) for file in files[1:]]
        with unchanged(*files):
            ujournal("start", Array(folder, "native", [native, rest[0]], rest[1]).config).expect_failed(
                REFUSED, native, "4096 bytes", "labelled with 512")
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(loop(file)) for file in files[:2]]
        journal = stack.enter_context(loop(files[2], "--sector-size", 4096))
        array = Array(folder, "native", disks, journal)
        array.start()
        fio_verify(array.link, "4m")
        array.stop()


@case("with sync = always the device has no cache, and every write is durable when it is answered")
def always(folder, quick):
    array = Array.of_files(folder, "always", 2, size=24 * MIB, keys=Array.SMALL | {"commit": ['sync = "always"']})
    array.label()
    array.start()
    expect_equal("write_cache and fua", ("write through", "0"), (array.queue("write_cache"), array.queue("fua")))
    fio_verify(array.link, "2m" if quick else "20m")
    for number in range(10 if quick else 100):
        write_at(array.block, number * 4608, pattern(number, 512), sync=True)
        journal = array.status()["journal"]
        expect_equal("the durable seq", journal["last_seq"], journal["durable_seq"])
    before = sha256(array.block)
    array.kill()
    array.start()
    expect_equal("sha256 of the device", before, sha256(array.block))
    array.stop()


# Discards and zeroes.


@case("discards and zeroes are advertised where every member can zero, and give zeros, also after a kill")
def zeroes(folder, quick):
    array = Array.of_files(folder, "zeroes", 2, size=24 * MIB)
    array.label()
    array.start()
    for attribute, value in [("discard_max_bytes", GIB), ("write_zeroes_max_bytes", GIB), ("discard_granularity", 4 * KIB)]:
        expect_equal(attribute, str(value), array.queue(attribute))
    size = array.size() // MIB * MIB
    data = bytearray(pattern("zeroes", size))
    write_at(array.block, 0, data)

    def zero(at, length, *options):
        run("blkdiscard", *options, "--offset", at, "--length", length, array.block)
        data[at:at + length] = bytes(length)

    def check(when):
        with open(array.block, "rb") as device:
            os.posix_fadvise(device.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            expect(device.read(size) == data, f"the device holds something else {when}")

    zero(MIB, 3 * MIB)
    zero(6 * MIB + 512, 64 * KIB + 1536, "--zeroout")
    zero(9 * MIB, 4 * KIB)
    check("at once")
    array.kill()
    array.start()
    check("after a takeover")
    ujournal("sync", "zeroes").expect_done()
    check("when all is home")
    zero(0, size)
    write_at(array.block, 5 * MIB, pattern("after", 512))
    data[5 * MIB:5 * MIB + 512] = pattern("after", 512)
    check("after a discard of all")
    array.stop()
    array.start()
    check("after a stop")
    array.stop()
    space = sum(os.stat(member).st_blocks * SECTOR for member in array.members)
    margins = 2 * MIB * len(array.members)
    expect(space <= margins + 4 * MIB, f"the members still take {space} bytes after a discard of everything")


@case("mkfs.ext4 on members of 2 TB is done within 10 s, and the first fsync within 1 s")
def large_members(folder, quick):
    image = file_of(folder, "image", 2 * GIB)
    run("mkfs.xfs", "-q", image)
    with loop(image) as disk, mounted(disk, os.path.join(folder, "store")) as store:
        array = Array.of_files(store, "large", 2, size=2 << 40, journal=64 * MIB)
        array.label()
        array.start()
        began = time.monotonic()
        run("mkfs.ext4", "-q", array.link)
        made = time.monotonic() - began
        with mounted(array.link, os.path.join(folder, "mnt")) as point:
            began = time.monotonic()
            with open(os.path.join(point, "file"), "wb") as file:
                file.write(pattern("large", 4 * KIB))
                os.fsync(file.fileno())
            synced = time.monotonic() - began
            note(f"a device of {array.size() / (1 << 40):.2f} TiB: mkfs.ext4 in {made:.2f} s, the first fsync in {synced:.3f} s")
            expect(made <= 10, f"mkfs.ext4 took {made:.1f} s")
            expect(synced <= 1, f"the first fsync took {synced:.2f} s")
        run("e2fsck", "-fn", array.link)
        array.stop()
        # Of a filesystem so large, 1 GiB is its own journal, which mkfs asks to be allocated.
        space = sum(os.stat(member).st_blocks * SECTOR for member in array.members)
        expect(space <= GIB + 256 * MIB, f"the members take {space} bytes after a mkfs")


@case("where a member cannot zero without writing, no discard is offered, and the kernel writes zeroes")
def cannot_zero(folder, quick):
    with drives("--size", "32MiB", count=2) as [plain, journal], drives("--size", "32MiB", "--discard") as [able]:
        for members, offered in [([plain, able], 0), ([able], GIB)] if quick else \
                [([plain, able], 0), ([able, plain], 0), ([able], GIB)]:
            array = Array(folder, "cannot", members, journal)
            array.label("--force")
            array.start()
            for attribute in ("discard_max_bytes", "write_zeroes_max_bytes"):
                expect_equal(f"{attribute} with {members}", str(offered), array.queue(attribute))
            write_at(array.block, 0, pattern("cannot", 4 * MIB))
            discarded = subprocess.run(["blkdiscard", "--length", str(MIB), array.block], check=False, capture_output=True)
            expect_equal("blkdiscard succeeds", offered > 0, discarded.returncode == 0)
            run("blkdiscard", "--zeroout", "--offset", MIB, "--length", 2 * MIB, array.block)
            with open(array.block, "rb") as device:
                device.seek(MIB)
                expect(not any(device.read(2 * MIB)), "the range that was zeroed is not zero")
                expect(device.read(MIB) == pattern("cannot", 4 * MIB)[3 * MIB:], "its neighbour was changed")
            run("mkfs.ext4", "-q", "-F", array.block)
            fio_verify(array.block, "4m")
            array.stop()


# What the device says of itself.


@case("the attributes of the device's queue are what they must be, for each kind of array")
def attributes(folder, quick):
    with contextlib.ExitStack() as stack:
        turning = stack.enter_context(drives("--size", "24MiB", "--rotational", "--discard", count=2))
        solid = stack.enter_context(drives("--size", "24MiB", "--discard", count=2))
        files = [file_of(folder, f"file{i}", 24 * MIB) for i in range(32)]
        journal = file_of(folder, "journal", 16 * MIB)
        for members, part, chunk, max_io, sync, expected in [
            (solid, journal, 64, 512, "flush", dict(optimal_io_size=MIB, rotational=0, read_ahead_kb=2048)),
            (turning, journal, 64, 1024, "flush", dict(optimal_io_size=MIB, rotational=1, read_ahead_kb=4096)),
            (solid, turning[0], 4, 4, "always", dict(optimal_io_size=MIB, rotational=0, read_ahead_kb=2048)),
            ([solid[0], turning[0]], solid[1], 1024, 128, "flush", dict(optimal_io_size=2 * MIB, rotational=1, read_ahead_kb=4096)),
            (files[:3], journal, 512, 256, "flush", dict(optimal_io_size=2 * MIB, rotational=0, read_ahead_kb=4096)),
            (files[:1], journal, 16, 64, "flush", dict(optimal_io_size=MIB, rotational=0, read_ahead_kb=2048)),
            (files, journal, 1024, 512, "flush", dict(optimal_io_size=32 * MIB, rotational=0, read_ahead_kb=16384)),
        ]:
            keys = {"device": [f'max_io = "{max_io}KiB"', "queue_depth = 32"], "commit": [f'sync = "{sync}"'],
                    "memory": Array.SMALL["memory"]}
            array = Array(folder, "queue", members, part, chunk=f"{chunk}KiB", keys=keys)
            array.label("--force")
            array.start()
            expected |= dict(minimum_io_size=chunk * KIB, max_sectors_kb=max_io, logical_block_size=512, chunk_sectors=0,
                             physical_block_size=4096, discard_granularity=4096, discard_max_bytes=GIB,
                             write_zeroes_max_bytes=GIB, write_cache="write back" if sync == "flush" else "write through",
                             fua=1 if sync == "flush" else 0)
            for attribute, value in expected.items():
                expect_equal(f"{attribute} of {len(members)} members with chunks of {chunk} KiB", str(value), array.queue(attribute))
            expect("[none]" in array.queue("scheduler"), f"the scheduler is {array.queue('scheduler')}")
            array.stop()


# The end of a daemon.


@case("SIGTERM with nobody on the device is a clean stop")
def sigterm(folder, quick):
    array = Array.of_files(folder, "term", 2)
    array.label()
    for number, name in enumerate(["SIGTERM"] if quick else ["SIGTERM", "SIGINT", "SIGTERM"]):
        array.start()
        write_at(array.link, 0, pattern(number, MIB))
        before, block, pid = sha256(array.link), array.block, array.pid
        os.kill(pid, getattr(signal, name))
        wait_until("the daemon's end", lambda: not is_alive(pid), 30)
        expect(not os.path.exists(block) and not os.path.lexists(array.link), f"{block} is still there")
        ujournal("check", array.config).expect_done("stopped cleanly")
        array.start()
        expect_equal("the kind of start", "clean", array.status()["recovery"]["kind"])
        expect_equal("sha256 of the device", before, sha256(array.link))
        array.stop()
    # In the foreground the exit code can be seen.
    for name in ["SIGTERM"] if quick else ["SIGTERM", "SIGINT", "SIGHUP"]:
        process = foreground(array)
        write_at(array.link, 0, pattern(name, MIB))
        process.send_signal(getattr(signal, name))
        expect_equal(f"exit code after {name}", 0, process.wait(30))
        ujournal("check", array.config).expect_done("stopped cleanly")


def foreground(array):
    process = subprocess.Popen([UJOURNAL, "start", "--foreground", array.config], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = [process.stdout.readline().strip() for _ in range(2)]
    expect_equal("what start printed", array.link, lines[1])
    wait_until("its socket", lambda: ujournal("status", array.name).code == 0)
    return process


@case("SIGTERM with a filesystem mounted leaves the device for a takeover, and the filesystem goes on")
def sigterm_mounted(folder, quick):
    array = Array.of_files(folder, "left", 2, size=48 * MIB, journal=16 * MIB)
    array.label()
    process = foreground(array)
    run("mkfs.ext4", "-q", array.link)
    block = array.block
    with mounted(array.link, os.path.join(folder, "mnt")) as point:
        for number in range(1 if quick else 5):
            data = pattern(number, 3 * MIB)
            with open(os.path.join(point, f"before{number}"), "wb") as file:
                file.write(data)
                os.fsync(file.fileno())
            process.send_signal(signal.SIGTERM)
            expect_equal("exit code after SIGTERM", 0, process.wait(40))
            expect(os.path.exists(block), f"{block} is gone")
            expect_waiting(array, "no daemon")
            # Nobody answers: what is asked for now waits.
            writer = subprocess.Popen(["dd", "if=/dev/zero", f"of={point}/during{number}", "bs=64k", "count=8", "oflag=direct"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.5)
            expect(writer.poll() is None, "a write was answered by nobody")
            process = foreground(array)
            recovery = array.status()["recovery"]
            expect_equal("the kind of start, and what was dropped", ("takeover", 0), (recovery["kind"], recovery["records_dropped"]))
            expect_equal("the device", block, array.block)
            expect_equal("the write that waited", 0, writer.wait(30))
            with open(os.path.join(point, f"before{number}"), "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                expect(file.read() == data, "the file holds something else")
    run("e2fsck", "-fn", block)
    array.stop()
    expect_equal("exit code after stop", 0, process.wait(30))


@case("stop --force ends a mounted array: what was synced is home, the array is clean, its users get errors")
def stop_forced(folder, quick):
    array = Array.of_files(folder, "forced", 2, size=48 * MIB, journal=16 * MIB)
    array.label()
    array.start()
    run("mkfs.ext4", "-q", array.link)
    block, point = array.block, os.path.join(folder, "mnt")
    os.makedirs(point)
    run("mount", array.link, point)
    data = pattern("forced", 2 * MIB)
    with open(os.path.join(point, "synced"), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    writer = subprocess.Popen(["fio", "--name=load", f"--directory={point}", "--rw=randwrite", "--bs=16k", "--size=16m",
                               "--ioengine=io_uring", "--iodepth=16", "--direct=1", "--time_based", "--runtime=60"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    ujournal("stop", "forced").expect_failed(REFUSED, "in use", f"mounted on {point}")
    array.stop("--force")
    expect(writer.wait(30) != 0, "the writer did not notice that its device is gone")
    with contextlib.suppress(OSError):
        with open(os.path.join(point, "after"), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        raise Failed("a write was taken after stop --force")
    run("umount", point)
    wait_until("the device's end", lambda: not os.path.exists(block))
    ujournal("check", array.config).expect_done("stopped cleanly")
    array.start()
    with mounted(array.link, point), open(os.path.join(point, "synced"), "rb") as file:
        expect(file.read() == data, "the file that was synced holds something else")
    run("e2fsck", "-fn", array.link)
    array.stop()


@case("start --wait begins when the missing part appears, and says which one it waits for")
def wait_for_part(folder, quick):
    array = Array.of_files(folder, "late", 3)
    array.label()
    for part in [array.members[1]] if quick else [array.members[1], array.journal]:
        away = part + ".away"
        os.rename(part, away)
        appear = threading.Timer(1.0, os.rename, [away, part])
        began = time.monotonic()
        appear.start()
        array.start("--wait", "30s")
        took = time.monotonic() - began
        expect(1.0 <= took < 20, f"it took {took:.1f} s, the part appeared after 1 s")
        array.stop()
    # A block device whose medium comes later.
    shutil.copyfile(array.members[2], array.members[2] + ".copy")
    node = run("losetup", "--find").strip()
    config = array.write(file="loop.toml", members=[*array.members[:2], node])
    appear = threading.Timer(1.0, run, ["losetup", "--direct-io=on", node, array.members[2] + ".copy"])
    appear.start()
    array.start("--wait", "30s", config=config)
    appear.join()
    array.stop()
    run("losetup", "--detach", node)


# The configurations that are shipped.


@case("every file in target-configs can be labelled and started, takes writes and stops")
def target_configs(folder, quick):
    source = os.path.join(ROOT, "target-configs")
    names = sorted(os.listdir(source))
    expect(len(names) >= 10, f"there are only {len(names)} files")
    for name in names:
        with open(os.path.join(source, name), encoding="utf-8") as file:
            text = file.read()
        config = tomllib.loads(text)
        paths = config["data"]["members"] + [path for path in [config["journal"].get("device")] if path]
        place = os.path.join(folder, name.removesuffix(".toml"))
        os.makedirs(place)
        with contextlib.ExitStack() as stack:
            for number, path in enumerate(paths):
                if path.startswith("/"):
                    # Sparse: all of the size that the file asks for, and little of the memory.
                    file = file_of(place, f"disk{number}", 40 * GIB)
                    options = ["--sector-size", 4096] if name.startswith("4kn") else []
                    disk = stack.enter_context(loop(file, *options))
                    expect_equal(f"mentions of {path} in {name}", 1, text.count(f'"{path}"'))
                    text = text.replace(f'"{path}"', f'"{disk}"')
                else:
                    file_of(place, path, 64 * MIB)
            copy = os.path.join(place, name)
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text)
            ujournal("label", copy).expect_done(config["name"])
            ujournal("start", copy).expect_done(f"/dev/ujournal/{config['name']}")
            size = "2m" if quick else "32m"
            run("fio", "--name=verify", f"--filename=/dev/ujournal/{config['name']}", f"--size={size}", "--rw=randwrite",
                "--bssplit=4k/50:64k/50", "--ioengine=io_uring", "--iodepth=16", "--direct=1", "--fsync=16", "--verify=crc32c",
                "--verify_state_save=0", "--minimal")
            ujournal("stop", config["name"]).expect_done("stopped")
            ujournal("check", copy).expect_done("stopped cleanly")
            ujournal("clear", copy).expect_done()
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main(__doc__))
