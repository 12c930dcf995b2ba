"""What the tests by cases of this folder share: the cases, the program and what it says, arrays of files.

Not a program: `identity.py`, `limits.py` and `failures.py` use it inside the lab, as root. A case is a function that
raises `Failed` where something is not as it must be. Each has a folder of its own in memory that goes
with the lab; what it leaves running is ended before the next.

The programs are found in UJOURNAL_BIN, a folder; the default is the release build of this checkout.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from stacks import hanging, programs

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("UJOURNAL_BIN", os.path.join(ROOT, "target/release"))
UJOURNAL, DRIVE = (os.path.join(BIN, name) for name in ("ujournal", "drive"))
FIO_VERIFY = os.path.join(ROOT, "tests/fs/fio-verify.sh")
BLOCK_OPS = os.path.join(ROOT, "tests/fs/block_ops.py")

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
SECTOR = 512

# How long a command may take before the case counts as hung.
PATIENCE = 60

# The exit codes of the contract.
DONE, FAILED, USAGE, REFUSED, DAMAGED = range(5)


class Failed(Exception):
    """Something is not as it must be."""


def expect(true, what):
    if not true:
        raise Failed(what)


def expect_equal(what, expected, found):
    expect(expected == found, f"{what}: expected {expected!r}, found {found!r}")


# Cases.

_cases = []
_notes = []


def note(text):
    """A figure that a case has measured, to be printed with its result."""
    _notes.append(text)


def case(sentence):
    """Makes a function `f(folder, quick)` a case of the script."""
    def register(function):
        _cases.append((sentence, function))
        return function
    return register


def main(description):
    """Runs the script's cases, or those whose sentence contains one of the words given."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every case, each with a smaller count")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run's random choices")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only cases whose sentence contains one of these")
    options = parser.parse_args()
    chosen = [(sentence, function) for sentence, function in _cases
              if not options.words or any(word in sentence for word in options.words)]
    if options.list:
        print("\n".join(sentence for sentence, _ in chosen))
        return 0
    if not chosen:
        parser.error(f"no case contains any of {options.words}")
    check_machine()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    wrong = []
    for sentence, function in chosen:
        random.seed(f"{seed} {sentence}")
        if not run_case(sentence, function, options.quick):
            wrong.append(sentence)
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} cases passed")
    for sentence in wrong:
        print(f"FAILED: {sentence}")
    return 1 if wrong else 0


def check_machine():
    for what, there in [("root", os.geteuid() == 0), ("/dev/ublk-control", os.path.exists("/dev/ublk-control")),
                        (UJOURNAL, os.access(UJOURNAL, os.X_OK)), (DRIVE, os.access(DRIVE, os.X_OK))]:
        if not there:
            sys.exit(f"{sys.argv[0]}: {what} is needed, but not there (in the lab: ci/lab -- {sys.argv[0]})")


def run_case(sentence, function, quick):
    folder = tempfile.mkdtemp(prefix="case.")
    os.chmod(folder, 0o755)
    began = time.monotonic()
    there_before = devices()
    problem = None
    try:
        function(folder, quick)
    except subprocess.TimeoutExpired as error:
        problem = f"{error}\n{hanging([UJOURNAL, DRIVE])}"
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        problem = "".join(traceback.format_exception(error)[-1:]).strip()
        if isinstance(error, subprocess.CalledProcessError):
            problem += f"\n{error.stdout or ''}{error.stderr or ''}"
        where = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in where if frame.filename == sys.argv[0] or HERE in frame.filename]
        problem += f" (lines {', '.join(map(str, lines))})"
    took = time.monotonic() - began
    if problem is None:
        leftovers = devices() - there_before
        if leftovers or daemons():
            problem = f"left behind: devices {leftovers}, daemons {daemons()}"
    print(f"{'ok     ' if problem is None else 'FAILED '} {sentence} ({took:.1f} s)", flush=True)
    for text in _notes:
        print(f"        {text}", flush=True)
    _notes.clear()
    if problem is not None:
        print("        " + problem.replace("\n", "\n        "), flush=True)
        tell_logs()
    end_everything(folder)
    return problem is None


def tell_logs():
    if not os.path.isdir("/run/ujournal"):
        return
    for name in sorted(os.listdir("/run/ujournal")):
        if name.endswith(".log"):
            with open(f"/run/ujournal/{name}", encoding="utf-8", errors="replace") as log:
                lines = log.read().splitlines()[-8:]
            print(f"        {name}:\n" + "\n".join(f"          {line[:400]}" for line in lines), flush=True)


def devices():
    """The kernel's ublk devices. One that a failed case has left stays: it disturbs no other."""
    return set(os.listdir("/sys/class/ublk-char"))


def daemons():
    """The daemons that live, by the array's name."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/run/ujournal"):
            if name.endswith(".lock"):
                with open(f"/run/ujournal/{name}", encoding="ascii") as lock:
                    pid = lock.readline().strip()
                if pid and is_alive(int(pid)):
                    found[name.removesuffix(".lock")] = int(pid)
    return found


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def end_everything(folder):
    """After a case: nothing may reach into the next one. After a good case there is nothing to end."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], check=False, capture_output=True, text=True)
    for pid in [*programs([UJOURNAL, DRIVE]), *map(int, children.stdout.split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with open("/proc/mounts", encoding="utf-8") as mounts:
        points = [line.split()[1] for line in mounts if line.split()[1].startswith(folder)]
    losetup = subprocess.run(["losetup", "-n", "-O", "NAME,BACK-FILE"], check=False, capture_output=True, text=True)
    loops = [line.split(None, 1) for line in losetup.stdout.splitlines()]
    for command in [*(["umount", "-l", point] for point in reversed(points)),
                    *(["losetup", "-d", name] for name, file in loops if file.startswith(folder))]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=10)
    shutil.rmtree("/run/ujournal", ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


# Programs.


class Outcome:
    """How a call came out."""

    def __init__(self, arguments, process, took):
        self.call = "ujournal " + " ".join(map(str, arguments))
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr
        self.took = took

    def __str__(self):
        return f"`{self.call}` ended with {self.code}, stdout {self.out!r}, stderr {self.err!r}"

    def expect_done(self, *words):
        """It did what was asked: exit code 0, nothing on stderr but progress, `words` on stdout."""
        expect(self.code == DONE and not self.sentences(), f"expected success: {self}")
        for word in words:
            expect(word in self.out, f"expected '{word}' on stdout: {self}")
        return self

    def expect_failed(self, code, *words):
        """It ended with `code`, printed nothing, and said why in one sentence that holds all `words`."""
        expect(self.code == code, f"expected exit code {code}: {self}")
        expect(self.out == "", f"expected nothing on stdout: {self}")
        sentences = self.sentences()
        expect(len(sentences) == 1 and self.err.endswith(sentences[0] + "\n"), f"expected one sentence on stderr: {self}")
        sentence = sentences[0]
        expect(not sentence.endswith(".") and len(sentence) < 600, f"expected a short sentence without a full stop: {self}")
        for word in words:
            expect(str(word) in sentence, f"expected '{word}' in the sentence: {self}")
        return self

    def sentences(self):
        return [line for line in self.err.splitlines() if line.startswith("ujournal: ")
                or not line.startswith(("read ", "replayed ", "zeroed ", "waited ", "waiting "))]


def ujournal(*arguments, user=None, timeout=PATIENCE):
    began = time.monotonic()
    process = subprocess.run([UJOURNAL, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=timeout, check=False, user=user, group=user,
                             extra_groups=None if user is None else [], cwd="/")
    return Outcome(arguments, process, time.monotonic() - began)


def run(*command, timeout=PATIENCE, **options):
    """A command that must succeed: its output."""
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=True, **options).stdout


# When a case fails, what it had built is left as it stands: taking it down in order could hang on what
# is broken, and hide the failure. `end_everything` does what can be done.


@contextlib.contextmanager
def drives(*options, count=1):
    """Emulated disks while it lasts: their paths."""
    # The process that stays keeps stderr: not a pipe, whose end would never come.
    with open("/tmp/drive.err", "wb") as errors:
        served = subprocess.run([DRIVE, "serve", "--count", str(count), "--log", "/tmp/drive.log", *map(str, options)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                                timeout=PATIENCE, check=True)
    paths = served.stdout.split()
    yield paths
    run(DRIVE, "stop", *paths)


@contextlib.contextmanager
def loop(file, *options):
    """A loop device over a file, past the page cache, while it lasts: its path."""
    path = run("losetup", "--find", "--show", "--direct-io=on", *options, file).strip()
    yield path
    run("losetup", "-d", path)


@contextlib.contextmanager
def mounted(device, point):
    """A filesystem, mounted while it lasts."""
    os.makedirs(point, exist_ok=True)
    run("mount", device, point)
    yield point
    run("umount", point)


def wait_until(what, condition, patience=10.0):
    deadline = time.monotonic() + patience
    while not condition():
        expect(time.monotonic() < deadline, f"waited {patience:g} s for: {what}")
        time.sleep(0.02)


# Arrays.


def file_of(folder, name, size):
    """A sparse file."""
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.truncate(size)
    return path


class Array:
    """A configuration file, and what it describes.

    `keys` are lines of TOML by section. The limits are small unless they say otherwise, so that a
    daemon needs some MiB of memory and a journal of 4 MiB is large.
    """

    SMALL = {
        "device": ["queue_depth = 32", 'max_io = "128KiB"'],
        "memory": ['window = "16MiB"', 'extents = "64Ki"'],
    }

    def __init__(self, folder, name, members, journal=None, chunk="64KiB", keys=None):
        self.folder = folder
        self.name = name
        self.members = list(members)
        self.journal = journal
        self.chunk = chunk
        self.keys = dict(Array.SMALL) | (keys or {})
        self.config = os.path.join(folder, f"{name}.toml")
        self.write()

    @classmethod
    def of_files(cls, folder, name, count, size=16 * MIB, journal=4 * MIB, **options):
        """An array of `count` new files; `journal` 0: attached, as `keys` says."""
        members = [file_of(folder, f"{name}.member{i}", size) for i in range(count)]
        journal = file_of(folder, f"{name}.journal", journal) if journal else None
        return cls(folder, name, members, journal, **options)

    def write(self, file=None, **changes):
        """Writes the configuration, or a changed one to `file`: its path."""
        view = dict(name=self.name, members=self.members, journal=self.journal, chunk=self.chunk, keys=self.keys)
        view.update(changes)
        sections = {section: list(lines) for section, lines in view["keys"].items()}
        members = ", ".join(json.dumps(member) for member in view["members"])
        sections["data"] = [f"members = [{members}]", f'chunk = "{view["chunk"]}"'] + sections.get("data", [])
        if view["journal"] is not None:
            sections["journal"] = [f"device = {json.dumps(view['journal'])}"] + sections.get("journal", [])
        path = self.config if file is None else os.path.join(self.folder, file)
        with open(path, "w", encoding="utf-8") as config:
            print(f'name = "{view["name"]}"', file=config)
            for section, lines in sections.items():
                print(f"[{section}]", *lines, sep="\n", file=config)
        return path

    @property
    def parts(self):
        return self.members + ([self.journal] if self.journal else [])

    @property
    def link(self):
        return f"/dev/ujournal/{self.name}"

    @property
    def block(self):
        """`/dev/ublkbN`."""
        return os.readlink(self.link)

    def label(self, *options):
        return ujournal("label", self.config, *options).expect_done(self.name, "labelled as")

    def start(self, *options, config=None):
        outcome = ujournal("start", config or self.config, *options).expect_done("/dev/ublkb", self.link)
        expect_equal("lines of start", [self.block, self.link], outcome.out.split())
        return outcome

    def stop(self, *options):
        outcome = ujournal("stop", self.name, *options).expect_done(self.name, "stopped")
        expect(not os.path.lexists(self.link), f"{self.link} is still there after stop")
        return outcome

    def status(self):
        return json.loads(ujournal("status", self.name, "--json").expect_done().out)

    @property
    def pid(self):
        return self.status()["pid"]

    def kill(self):
        """The daemon dies as in a crash of its own; the kernel goes on."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until("the daemon's end", lambda: not is_alive(pid))

    def size(self):
        return int(run("blockdev", "--getsize64", self.link))

    def queue(self, attribute):
        with open(f"/sys/block/{os.path.basename(self.block)}/queue/{attribute}", encoding="ascii") as file:
            return file.read().strip()


def expect_waiting(array, why):
    """No daemon, and its device is there: `list` and `status` say so, in text and in JSON."""
    reason = f"{why}; ujournal start CONFIG goes on"
    listed = [line for line in ujournal("list").expect_done().out.splitlines() if line.split()[0] == array.name]
    expect_equal("the line of list", [f"{array.name}  WAITING  {array.block}  {reason}"],
                 ["  ".join(line.split(None, 3)) for line in listed])
    shown = ujournal("status", array.name)
    expect(shown.code == FAILED and not shown.err and shown.out.startswith(f"{array.name}: WAITING\n"), f"{shown}")
    expect(reason in shown.out and f"{array.link} ({array.block})" in shown.out, f"{shown}")
    expected = {"name": array.name, "state": "WAITING", "reason": reason, "pid": None}
    one = ujournal("status", array.name, "--json")
    expect_equal("exit code of status --json", FAILED, one.code)
    every = ujournal("status", "--json")
    expect_equal("exit code of status --json of all", FAILED, every.code)
    for what, found in [("status NAME", json.loads(one.out)),
                        *((what, {entry["name"]: entry for entry in json.loads(out)}[array.name]) for what, out in
                          [("status", every.out), ("list", ujournal("list", "--json").expect_done().out)])]:
        expect_equal(f"the JSON of {what}", expected, {key: found[key] for key in expected})
        expect_equal(f"the device of {what}", [array.block, array.link],
                     [(found if what == "list" else found["device"])[key] for key in ("block", "link")])


# Data.


def pattern(seed, size):
    """Bytes that are nowhere else."""
    return random.Random(str(seed)).randbytes(size)


def write_at(path, offset, data, sync=True):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path):
    """Of all its bytes, as the disk has them and not the page cache."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            while chunk := file.read(MIB):
                digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


@contextlib.contextmanager
def unchanged(*paths):
    """What happens meanwhile must leave every byte of these as it is."""
    before = {path: (os.path.getsize(path), sha256(path)) for path in paths}
    yield
    for path, state in before.items():
        expect((os.path.getsize(path), sha256(path)) == state, f"{path} was changed")


def with_filesystem(array, folder):
    """Makes a filesystem on the device and loads it with verified writes: sha256 of the device then."""
    run("mkfs.ext4", "-q", "-F", array.link)
    with mounted(array.link, os.path.join(folder, "mnt")) as point:
        fio_verify(os.path.join(point, "data"), size="4m")
    run("e2fsck", "-fn", array.link)
    return sha256(array.link)


def fio_verify(file, size, *options):
    """Random writes of many sizes with flushes among them, all compared with what is read afterwards."""
    run("fio", "--name=verify", f"--filename={file}", f"--size={size}", "--rw=randwrite", "--ioengine=io_uring",
        "--bssplit=512/10:4k/40:12k/20:64k/20:256k/10", "--iodepth=16", "--direct=1", "--fsync=16",
        "--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", f"--randseed={random.randrange(1 << 31)}",
        "--minimal", *options, timeout=120)
