#!/usr/bin/env python3
"""Loads a mounted filesystem, and notes outside of it which files must outlive a power cut.

    noted.py write  DIR --notes FILE --seed S [--figures FILE]
    noted.py verify DIR --notes FILE --seed S

`write`, side by side in DIR (which must not exist, FILE neither):

* four writers of files, 1 B to 64 KiB each. One file in six is fsynced, and its folder too; then,
  and only then, a line with its name goes to FILE, and that is fsynced as well. FILE lies where the
  cut does not reach.
* four writers past the page cache, 4 to 64 KiB at random places of a file each, without any fsync:
  what a disk has answered and not stored yet. The longest pause between two answers to one of them
  is how long the device below stood still.

It goes on until SIGTERM comes; any error of the filesystem ends it with status 1. At the end it tells, one "key value"
a line in the file of --figures: files, noted, direct_writes, longest_pause_ms.

`verify` reads every file that FILE names and compares it with what the seed says it must be. It
takes an empty FILE for a failure: it would have shown nothing.

Exit codes: 0 done, or all equal; 1 a difference (the first ones are named), or an error; 2 wrong usage.
"""

import argparse
import hashlib
import mmap
import os
import random
import signal
import sys
import threading
import time

WRITERS = 4
FILE_BYTES_MAX = 65536
# Of all files, this part is fsynced.
FSYNCED_PART = 1 / 6
FILES_PER_FOLDER = 100

DIRECT_FILE_BYTES = 16 << 20
DIRECT_WRITE_BYTES = (4096, 8192, 16384, 65536)

DIFFERENCES_TOLD_MAX = 10


def content(seed, name):
    """What the file of that name holds; its length follows from the name too."""
    stream = hashlib.shake_128(f"{seed}/{name}".encode())
    length = 1 + int.from_bytes(stream.digest(4), "little") % FILE_BYTES_MAX
    return stream.digest(length)


class Load:
    """The writers, and what they count."""

    def __init__(self, options):
        self.root = options.dir
        self.seed = options.seed
        self.ending = threading.Event()
        self.lock = threading.Lock()
        self.notes = os.open(options.notes, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self.errors = []
        self.files = 0
        self.noted = 0
        self.direct_writes = 0
        self.longest_pause = 0.0

    def goes_on(self):
        return not self.ending.is_set() and not self.errors

    def run(self):
        threads = [threading.Thread(target=self.guard, args=(self.write_files, number)) for number in range(WRITERS)]
        threads += [threading.Thread(target=self.guard, args=(self.write_directly, number)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def guard(self, body, *arguments):
        try:
            body(*arguments)
        except Exception as error:  # pylint: disable=broad-except  # whatever it was, the load ends
            self.errors.append(error)

    def write_files(self, writer):
        draw = random.Random(f"{self.seed}/{writer}")
        number = 0
        while self.goes_on():
            folder = f"{writer}.{number // FILES_PER_FOLDER}"
            if number % FILES_PER_FOLDER == 0:
                os.mkdir(os.path.join(self.root, folder))
                fsync_folder(self.root)
            name = f"{folder}/{number}"
            fsynced = draw.random() < FSYNCED_PART
            with open(os.path.join(self.root, name), "xb", buffering=0) as file:
                data = memoryview(content(self.seed, name))
                while data:
                    data = data[file.write(data):]
                if fsynced:
                    os.fsync(file.fileno())
            if fsynced:
                fsync_folder(os.path.join(self.root, folder))
                self.note(name)
            with self.lock:
                self.files += 1
            number += 1

    def note(self, name):
        with self.lock:
            line = f"{name}\n".encode()
            if os.write(self.notes, line) != len(line):
                raise OSError("the notes take no more")
            os.fsync(self.notes)
            self.noted += 1

    def write_directly(self, writer):
        draw = random.Random(f"{self.seed}/direct/{writer}")
        buffer = mmap.mmap(-1, max(DIRECT_WRITE_BYTES))
        buffer[:] = draw.randbytes(len(buffer))
        file = os.open(os.path.join(self.root, f"direct.{writer}"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
        os.posix_fallocate(file, 0, DIRECT_FILE_BYTES)
        answered = time.monotonic()
        while self.goes_on():
            length = draw.choice(DIRECT_WRITE_BYTES)
            at = draw.randrange(0, DIRECT_FILE_BYTES - length + 1, 4096)
            if os.pwrite(file, memoryview(buffer)[:length], at) != length:
                raise OSError("a direct write was cut short")
            now = time.monotonic()
            with self.lock:
                self.longest_pause = max(self.longest_pause, now - answered)
                self.direct_writes += 1
            answered = now
        os.close(file)


def fsync_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(options):
    os.mkdir(options.dir)
    fsync_folder(os.path.dirname(os.path.abspath(options.dir)))
    load = Load(options)
    signal.signal(signal.SIGTERM, lambda _number, _frame: load.ending.set())
    load.run()
    figures = (f"files {load.files}\nnoted {load.noted}\ndirect_writes {load.direct_writes}\n"
               f"longest_pause_ms {load.longest_pause * 1000:.0f}\n")
    if options.figures:
        with open(options.figures, "w", encoding="ascii") as file:
            file.write(figures)
    else:
        sys.stdout.write(figures)
    for error in load.errors:
        print(f"noted.py: {error}", file=sys.stderr)
    return 1 if load.errors else 0


def verify(options):
    with open(options.notes, encoding="ascii") as file:
        # What follows the last line break was being noted when the power went.
        names = file.read().split("\n")[:-1]
    differences = []
    for name in names:
        try:
            with open(os.path.join(options.dir, name), "rb", buffering=0) as file:
                found = file.readall()
        except OSError as error:
            differences.append(f"{name}: {error.strerror}")
            continue
        expected = content(options.seed, name)
        if found != expected:
            at = next((at for at, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), None)
            differences.append(f"{name}: {len(expected)} bytes expected, {len(found)} found" if at is None
                               else f"{name}: differs from byte {at} on")
    for difference in differences[:DIFFERENCES_TOLD_MAX]:
        print(f"noted.py: {difference}", file=sys.stderr)
    if differences or not names:
        print(f"noted.py: {len(differences)} of {len(names)} noted files are not as they were fsynced", file=sys.stderr)
        return 1
    print(f"verified {len(names)}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "verify"))
    parser.add_argument("dir")
    parser.add_argument("--notes", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--figures")
    options = parser.parse_args()
    try:
        return write(options) if options.action == "write" else verify(options)
    except OSError as error:
        print(f"noted.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
