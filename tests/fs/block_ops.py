#!/usr/bin/env python3
"""Every kind of request at once on one stretch of a block device, compared with a copy in memory.

    block_ops.py DEVICE OFFSET LENGTH --seconds N --seed S [--discard-zeroes]

Writes of 512 bytes to 1 MiB (plain, and with O_DSYNC, which reaches a disk as FUA), flushes, zeroes
that carry no data (BLKZEROOUT), discards, and reads: one after the other, all past the page cache.
The oracle is a byte array. Each read is compared at once, everything once more at the end.

A discarded range holds anything until it is written, unless --discard-zeroes says that the device
promises zeros. OFFSET and LENGTH are multiples of 1 MiB, LENGTH at most 64 MiB.

Prints how many of each it did. Exit codes: 0 all compared equal; 1 a difference (the place is
named), or the device failed; 2 wrong usage.
"""

import argparse
import fcntl
import mmap
import os
import random
import stat
import struct
import sys
import time

# From <linux/fs.h>.
BLKZEROOUT = 0x127F
BLKDISCARD = 0x1277

SECTOR = 512
MIB = 1 << 20
LENGTH_MAX = 64 * MIB


class Difference(Exception):
    """The device does not hold what it was given."""


class Stretch:
    """A stretch of the device, and what it must hold. None of the requests overlap in time."""

    def __init__(self, device, offset, length):
        self.offset = offset
        self.length = length
        self.plain = os.open(device, os.O_RDWR | os.O_DIRECT)
        self.dsync = os.open(device, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        self.buffer = mmap.mmap(-1, MIB)
        # What it holds is not known at first.
        self.expected = bytearray(length)
        self.known = bytearray(length // SECTOR)

    def expect(self, at, data):
        self.expected[at:at + len(data)] = data
        self.known[at // SECTOR:(at + len(data)) // SECTOR] = b"\1" * (len(data) // SECTOR)

    def forget(self, at, length):
        self.known[at // SECTOR:(at + length) // SECTOR] = bytes(length // SECTOR)

    def write(self, descriptor, at, data):
        self.buffer[:len(data)] = data
        written = os.pwrite(descriptor, memoryview(self.buffer)[:len(data)], self.offset + at)
        if written != len(data):
            raise OSError(f"a write of {len(data)} bytes at {self.offset + at} wrote {written}")
        self.expect(at, data)

    def zero(self, at, length):
        fcntl.ioctl(self.plain, BLKZEROOUT, struct.pack("=QQ", self.offset + at, length))
        self.expect(at, bytes(length))

    def discard(self, at, length, zeroes):
        fcntl.ioctl(self.plain, BLKDISCARD, struct.pack("=QQ", self.offset + at, length))
        if zeroes:
            self.expect(at, bytes(length))
        else:
            self.forget(at, length)

    def compare(self, at, length):
        found = os.preadv(self.plain, [memoryview(self.buffer)[:length]], self.offset + at)
        if found != length:
            raise OSError(f"a read of {length} bytes at {self.offset + at} read {found}")
        if self.buffer[:length] == self.expected[at:at + length]:
            return
        for sector in range(at, at + length, SECTOR):
            expected = self.expected[sector:sector + SECTOR]
            data = self.buffer[sector - at:sector - at + SECTOR]
            if self.known[sector // SECTOR] and data != expected:
                byte = next(i for i in range(SECTOR) if data[i] != expected[i])
                raise Difference(f"byte {self.offset + sector + byte}: expected {expected[byte:byte + 16].hex()}, "
                                 f"found {bytes(data[byte:byte + 16]).hex()}")

    def compare_all(self):
        for at in range(0, self.length, MIB):
            self.compare(at, MIB)


def run(stretch, options, can_discard):
    draw = random.Random(options.seed)
    done = dict.fromkeys(("write", "fua", "flush", "zero", "discard", "read"), 0)
    kinds = ["write"] * 8 + ["fua"] * 3 + ["flush"] * 2 + ["zero"] * 2 + ["read"] * 6
    if can_discard:
        kinds += ["discard"] * 2
    end = time.monotonic() + options.seconds
    # At least so many that every kind comes, however slow the device is.
    while time.monotonic() < end or min(done[kind] for kind in kinds) == 0:
        kind = draw.choice(kinds)
        # Every magnitude from one sector to 1 MiB is as likely as the others.
        length = min(MIB, int(SECTOR * 2 ** draw.uniform(0, 11.05)) // SECTOR * SECTOR)
        # Half of them in the first 4 MiB, so that they often overlap.
        span = stretch.length if draw.random() < 0.5 else min(stretch.length, 4 * MIB)
        at = draw.randrange(0, span - length + 1, SECTOR)
        if kind == "write":
            stretch.write(stretch.plain, at, draw.randbytes(length))
        elif kind == "fua":
            stretch.write(stretch.dsync, at, draw.randbytes(length))
        elif kind == "flush":
            os.fsync(stretch.plain)
        elif kind == "zero":
            stretch.zero(at, length)
        elif kind == "discard":
            stretch.discard(at, length, options.discard_zeroes)
        else:
            stretch.compare(at, length)
        done[kind] += 1
    stretch.compare_all()
    return done


def discard_bytes_max(device):
    number = os.stat(device).st_rdev
    path = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    # A partition's queue is its disk's.
    for queue in (f"{path}/queue", f"{path}/../queue"):
        if os.path.isdir(queue):
            with open(f"{queue}/discard_max_bytes", encoding="ascii") as file:
                return int(file.read())
    raise OSError(f"{path}/queue is not there")


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("offset", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--discard-zeroes", action="store_true")
    options = parser.parse_args()
    if options.offset < 0 or options.offset % MIB or options.length % MIB or not MIB <= options.length <= LENGTH_MAX:
        parser.error(f"expected multiples of 1 MiB, at most 64 MiB long, found {options.offset} and {options.length}")
    try:
        if not stat.S_ISBLK(os.stat(options.device).st_mode):
            parser.error(f"'{options.device}' is not a block device")
        can_discard = discard_bytes_max(options.device) > 0
        done = run(Stretch(options.device, options.offset, options.length), options, can_discard)
    except (Difference, OSError) as error:
        print(f"block_ops.py: {options.device}: {error} (seed {options.seed})", file=sys.stderr)
        return 1
    if not can_discard:
        print(f"block_ops.py: {options.device} takes no discards: none was sent", file=sys.stderr)
    print(" ".join(f"{kind} {count}" for kind, count in done.items()), f"seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
