"""What the crash tests of this folder share: an array under test, its stamped load, its filesystem.

Not a program. `kill.py` and `powercut.py` use it inside the lab, as root. Everything that is random
comes from a seed. A `Violation` is a promise of the array that did not hold; any other exception is
the test's own failure. Both end a test with 1.

The programs are found in UJOURNAL_BIN, a folder; the default is the release build of this checkout.
"""

import json
import os
import random
import re
import signal
import struct
import subprocess
import threading
import time
import zlib

from stacks import hanging

HERE = os.path.dirname(os.path.realpath(__file__))
BIN = os.environ.get("UJOURNAL_BIN", os.path.join(HERE, "..", "..", "target", "release"))
UJOURNAL, DRIVE, STAMPS = (os.path.join(BIN, name) for name in ("ujournal", "drive", "stamps"))

# Nothing that is waited for may take longer.
PATIENCE_SECONDS = 180


class Violation(Exception):
    """The array broke a promise."""


def say(text):
    """One line for each step, with the time since the machine came up."""
    print(f"[{time.clock_gettime(time.CLOCK_MONOTONIC):9.3f}] {text}", flush=True)


def now_ns():
    """The clock of the stamps' log."""
    return time.time_ns()


def run(*command, check=True):
    """Runs a command to its end."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, timeout=PATIENCE_SECONDS, check=False)
    if check and ended.returncode != 0:
        raise Violation(f"{' '.join(command)}: ended with {ended.returncode}: {ended.stderr.strip()}")
    return ended


def wait_until(condition, what, seconds=PATIENCE_SECONDS, pause=0.001):
    """Returns what `condition` returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Violation(f"{what}: not after {seconds} s")
        time.sleep(pause)


def is_alive(pid):
    """Whether a process still runs; the dead that nobody has asked for yet do not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


# The array.


class Array:
    """One array, by way of its commands."""

    def __init__(self, name, members, journal, folder, sections):
        self.name = name
        self.config_path = os.path.join(folder, f"{name}.toml")
        self.members = members
        self.journal = journal
        self.sections = dict(sections)
        self.device = None
        self.configure({})

    def configure(self, sections):
        """Writes the configuration; a section that is given replaces the one before."""
        self.sections.update(sections)
        tables = {"data": {"members": self.members, "chunk": "64KiB"}, **self.sections}
        if self.journal is not None:
            tables["journal"] = {"device": self.journal, **tables.get("journal", {})}
        with open(self.config_path, "w", encoding="utf-8") as file:
            file.write(f"name = {json.dumps(self.name)}\n")
            for table, keys in tables.items():
                file.write(f"[{table}]\n")
                file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())

    def label(self):
        run(UJOURNAL, "label", "--force", self.config_path)

    def begin_start(self):
        """A start that is waited for by `end_start`."""
        return subprocess.Popen([UJOURNAL, "start", self.config_path], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end_start(self, starting):
        try:
            out, errors = starting.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            waiting = hanging([UJOURNAL, DRIVE])
            starting.kill()
            raise Violation(f"start: not after {PATIENCE_SECONDS} s; the log ends with: {self.log_end()}; "
                            f"what runs: {waiting}") from None
        if starting.returncode != 0:
            raise Violation(f"start: ended with {starting.returncode}: {errors.strip()}")
        found = re.search(r"/dev/ublkb[0-9]+", out)
        if not found:
            raise Violation(f"start: printed no device: {out!r}")
        if self.device not in (None, found[0]):
            raise Violation(f"start: the device was {self.device} and is now {found[0]}")
        self.device = found[0]

    def start(self):
        self.end_start(self.begin_start())

    def stop(self):
        run(UJOURNAL, "stop", self.name)
        self.device = None

    def status(self):
        """What `status` says, or None if nobody answers."""
        ended = run(UJOURNAL, "status", self.name, "--json", check=False)
        return json.loads(ended.stdout) if ended.returncode == 0 else None

    def pid(self):
        """The daemon, as its lock file says: also one that does not serve yet."""
        try:
            with open(f"/run/ujournal/{self.name}.lock", encoding="ascii") as lock:
                return int(lock.readline())
        except (FileNotFoundError, ValueError):
            return None

    def log_end(self):
        try:
            with open(f"/run/ujournal/{self.name}.log", encoding="utf-8", errors="replace") as log:
                return " | ".join(log.read().splitlines()[-8:])
        except FileNotFoundError:
            return "(no log)"

    def in_flight(self):
        """Requests that the device has and has not answered."""
        with open(f"/sys/block/{os.path.basename(self.device)}/inflight", encoding="ascii") as file:
            return sum(map(int, file.read().split()))

    def partition(self):
        """Two partitions of one half each; returns their paths."""
        with open(f"/sys/block/{os.path.basename(self.device)}/size", encoding="ascii") as size:
            half = int(size.read()) // 2 // 2048 * 2048
        script = f"label: dos\nstart=2048, size={half - 2048}, type=83\nstart={half}, type=83\n"
        ended = subprocess.run(["sfdisk", "--quiet", "--wipe=always", self.device], input=script, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS, check=False)
        if ended.returncode != 0:
            raise Violation(f"sfdisk: {ended.stdout.strip()}")
        parts = [f"{self.device}p1", f"{self.device}p2"]
        wait_until(lambda: all(map(os.path.exists, parts)), "the partitions appear", 20)
        return parts


def lives_of(status):
    """How many lives have records in the ring that are still needed, this one included."""
    return status["epoch"] - int(status["journal"]["tail_seq"].split(".")[0]) + 1


# The stamped load.


class Stamps:
    """`stamps write` in the background."""

    # As `src/stamps/log.rs` has it: kind, flags, writer, sectors, counter, lba, time, number, checksum.
    RECORD = struct.Struct("<BBHIQQQII")
    ACKNOWLEDGED = 3

    def __init__(self, device, log, seed, *options):
        self.device, self.log, self.seed = device, log, seed
        self.position = 0
        self.process = subprocess.Popen(
            [STAMPS, "write", device, "--log", log, "--seed", str(seed), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def acknowledged(self):
        """When writes were acknowledged, since the last call, in nanoseconds."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self.position)
                data = log.read()
        except FileNotFoundError:
            return []
        whole = len(data) // self.RECORD.size * self.RECORD.size
        self.position += whole
        return [record[6] for record in self.RECORD.iter_unpack(data[:whole]) if record[0] == self.ACKNOWLEDGED]

    def wait_for_acknowledgement(self, since):
        """When the first write was acknowledged that came after the moment `since`."""
        def look():
            return next((when for when in self.new_acknowledgements() if when > since), None)
        return wait_until(look, "the next acknowledged stamp")

    def pause_after(self, moment, until):
        """How long after `moment`, in nanoseconds, acknowledgements came again; at `until` they do.

        What a daemon had answered before its death is noted for a moment after it, so the first one does not count:
        what counts is the end of the longest pause.
        """
        moments = [moment]
        while moments[-1] <= until:
            moments += wait_until(self.new_acknowledgements, "the next acknowledged stamp")
            moments = [moment] + sorted(when for when in moments if when > moment)
        pauses = zip(moments, moments[1:])
        return max(pauses, key=lambda pause: pause[1] - pause[0])[1] - moment

    def new_acknowledgements(self):
        self.check()
        return self.acknowledged()

    def check(self):
        """It must still be running."""
        if self.process.poll() is not None:
            raise Violation(f"stamps ended with {self.process.returncode}: {self.process.stderr.read().strip()}")

    def end(self):
        """Lets it end in its own way; returns what it did."""
        self.check()
        self.process.send_signal(signal.SIGTERM)
        out, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        if self.process.returncode != 0:
            raise Violation(f"stamps ended with {self.process.returncode}: {errors.strip()}")
        return json.loads(out)


def verify_stamps(device, log, mode):
    """The report of `stamps verify`; a violation if it found one."""
    ended = run(STAMPS, "verify", device, "--log", log, "--mode", mode, "--json", check=False)
    if ended.returncode != 0:
        raise Violation(f"stamps verify: {ended.stderr.strip()} {ended.stdout.strip()}")
    return json.loads(ended.stdout)


# Files.


def content_of(seed, name, version):
    """What a version of a file holds: some bytes to some tens of KiB, the same whenever asked."""
    source = random.Random(f"{seed} {name} {version}")
    return source.randbytes(source.choice((17, 600, 4096, 9000, 40000)))


class Files(threading.Thread):
    """A small load of files: each is written beside its place, fsynced, renamed and its folder fsynced,
    and then noted. What is noted must be there afterwards, that version or the next.

    `note` is a file outside the device; each line has reached it before the next version is begun.
    """

    NAMES = 40

    def __init__(self, folder, note, seed, pause=0.01):
        super().__init__(daemon=True)
        self.folder, self.note, self.seed, self.pause = folder, note, seed, pause
        self.source = random.Random(seed)
        self.ending = threading.Event()
        self.error = None
        os.makedirs(folder, exist_ok=True)

    def run(self):
        try:
            with open(self.note, "a", encoding="ascii") as note:
                folder = os.open(self.folder, os.O_RDONLY)
                versions = {}
                while not self.ending.is_set():
                    name = f"f{self.source.randrange(self.NAMES)}"
                    version = versions.get(name, 0) + 1
                    self.replace(name, content_of(self.seed, name, version), folder)
                    versions[name] = version
                    note.write(f"{name} {version}\n")
                    note.flush()
                    os.fdatasync(note.fileno())
                    time.sleep(self.pause)
                os.close(folder)
        except OSError as error:
            self.error = error

    def replace(self, name, content, folder):
        place = os.path.join(self.folder, name)
        with open(place + ".new", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(place + ".new", place)
        os.fsync(folder)

    def check(self):
        if self.error is not None:
            raise Violation(f"the file load: {self.error}")

    def end(self):
        self.ending.set()
        self.join(PATIENCE_SECONDS)
        if self.is_alive():
            raise Violation("the file load hangs")
        self.check()


def verify_files(folder, note, seed):
    """Every noted file is there, in the noted version or the next one; returns how many were noted."""
    versions = {}
    with open(note, encoding="ascii") as lines:
        for line in lines:
            # The last line may have been cut.
            if re.fullmatch(r"f[0-9]+ [0-9]+\n", line):
                name, version = line.split()
                versions[name] = int(version)
    for name, version in versions.items():
        try:
            with open(os.path.join(folder, name), "rb") as file:
                found = file.read()
        except OSError as error:
            raise Violation(f"file {name}, fsynced as version {version}: {error}") from None
        legal = (version, version + 1)
        if found not in [content_of(seed, name, version) for version in legal]:
            raise Violation(f"file {name}: expected version {version} or the next, found {len(found)} bytes with "
                            f"checksum {zlib.crc32(found):08x}")
    return len(versions)


def check_filesystem(device):
    ended = run("e2fsck", "-f", "-n", device, check=False)
    if ended.returncode != 0:
        raise Violation(f"e2fsck -fn {device} ended with {ended.returncode}: {ended.stdout.strip()}")


def complaints():
    """Lines of the kernel that speak of errors."""
    pattern = re.compile(r"I/O error|EXT4-fs (error|warning)|Buffer I/O|JBD2.*(error|abort)|Aborting|BUG:|Oops", re.I)
    return [line for line in run("dmesg", check=False).stdout.splitlines() if pattern.search(line)]
