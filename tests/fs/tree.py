#!/usr/bin/env python3
"""Makes a tree of files from a seed, or compares one with what the seed says it must be.

    tree.py make   DIR --files N --seed S [--posix]
    tree.py verify DIR --files N --seed S [--posix]

Nothing about the tree is stored: names, sizes and contents follow from the seed, so a tree can be
verified on another day, under another kernel, with nothing but the same arguments. DIR must not
exist before `make`; `verify` compares everything in it, byte by byte, and takes an entry too many
for a difference as much as one too few. 20,000 files are some 200 MB: one in twenty is empty, most
have less than 4 KiB, a few up to 256 KiB.

All names are such as FAT takes, long and odd ones among them. --posix adds what FAT has not:
symbolic and hard links, permission bits, and the names that FAT forbids.

Exit codes: 0 made, or equal; 1 a difference (the first ones are named), or the disk failed;
2 wrong usage.
"""

import argparse
import hashlib
import os
import random
import stat
import sys

# Sizes: of all files, this part is between these bounds, both included.
SIZES = (
    (0.05, 0, 0),
    (0.58, 1, 4096),
    (0.25, 4097, 16384),
    (0.10, 16385, 65536),
    (0.02, 65537, 262144),
)
FILES_PER_FOLDER = 24
DEPTH_MAX = 12
# Of all files, how many have a hard link, and how many a symbolic one, with --posix.
LINKED_PART = 0.02
DIFFERENCES_TOLD_MAX = 10

ENDINGS = ("", ".c", ".txt", ".tar.gz", ".JPEG", ".o", "~", ".with.many.dots", " (copy 2).odt")
ODD = ("sp ace", "semi;colon", "plus+equals=", "[brackets]", "{braces}", "hash#", "percent%41", "at@",
       "quote'", "amp&", "dollar$", "caret^", "comma,", "exclaim!", "tick`", "grüße", "naïve", "日本語", "Ω")
ODD_POSIX = ("colon:", "star*", "quest?", "pipe|", "back\\slash", "<angle>", 'double"', "new\nline",
             "tab\t", "trailing.", "trailing ", "\x01control")
NAME_BYTES_MAX = 255


class Draw:
    """Random numbers that are the same under every version of Python: `random()` alone is promised
    to be."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def below(self, limit):
        return int(self.random() * limit)

    def pick(self, choices):
        return choices[self.below(len(choices))]


class Folder:
    def __init__(self, path, depth):
        self.path = path
        self.depth = depth


def plan(files, seed, posix):
    """What the tree consists of, each thing after the folder it is in: ("folder", path, mode),
    ("file", path, mode, number, size), ("hard", path, target), ("symbolic", path, text)."""
    draw = Draw(seed)
    folders = [Folder("", 0)]
    earlier_files = []
    for number in range(files):
        if number % FILES_PER_FOLDER == 0:
            # Mostly below a folder made lately: that makes long paths.
            recent = folders[-4:]
            parent = draw.pick(recent) if draw.random() < 0.7 else draw.pick(folders)
            if parent.depth >= DEPTH_MAX:
                parent = folders[0]
            path = os.path.join(parent.path, name_for(draw, f"d{number}", posix, long_part=0.02))
            folders.append(Folder(path, parent.depth + 1))
            yield "folder", path, 0o755 if draw.random() < 0.8 else 0o700

        folder = folders[-1] if draw.random() < 0.5 else draw.pick(folders)
        path = os.path.join(folder.path, name_for(draw, f"{number}", posix, long_part=0.05))
        mode = draw.pick((0o644, 0o644, 0o600, 0o755, 0o444))
        yield "file", path, mode, number, size_for(draw)

        if posix:
            if draw.random() < LINKED_PART and earlier_files:
                yield "hard", os.path.join(draw.pick(folders).path, f"h{number}"), draw.pick(earlier_files)
            if draw.random() < LINKED_PART:
                # Some of them lead nowhere.
                text = f"../{number}" if draw.random() < 0.5 else "x" * (1 + draw.below(1000))
                yield "symbolic", os.path.join(draw.pick(folders).path, f"s{number}"), text
            earlier_files.append(path)


def name_for(draw, unique, posix, long_part):
    """A name that no other has, whatever the case of its letters, because `unique` is in it."""
    chance = draw.random()
    if chance < long_part:
        # As long as a name may be, or a little less.
        text = unique + "-" + "".join(draw.pick("abcdefghijklmnopqrstuvwxyz0123456789_-")
                                      for _ in range(NAME_BYTES_MAX - len(unique) - 1 - draw.below(4)))
    elif chance < 0.25:
        odd = draw.pick(ODD + ODD_POSIX if posix else ODD)
        text = f"{unique} {odd}"
    elif chance < 0.30:
        text = f".hidden{unique}"
    else:
        text = unique + draw.pick(ENDINGS)
    assert len(text.encode()) <= NAME_BYTES_MAX, text
    return text


def size_for(draw):
    chance = draw.random()
    for part, smallest, largest in SIZES:
        if chance < part:
            return smallest + draw.below(largest - smallest + 1)
        chance -= part
    return SIZES[-1][2]


def content(seed, number, size):
    """A stream of its own for each file, so that no block of one can pass for one of another."""
    return hashlib.shake_128(f"{seed}/{number}".encode()).digest(size)


def make(root, files, seed, posix):
    os.mkdir(root)
    made = bytes_made = 0
    for kind, path, *rest in plan(files, seed, posix):
        path = os.path.join(root, path)
        if kind == "folder":
            os.mkdir(path)
            if posix:
                os.chmod(path, rest[0])
        elif kind == "file":
            mode, number, size = rest
            with open(path, "xb", buffering=0) as file:
                data = memoryview(content(seed, number, size))
                while data:
                    data = data[file.write(data):]
                if posix:
                    os.fchmod(file.fileno(), mode)
            made += 1
            bytes_made += size
        elif kind == "hard":
            os.link(os.path.join(root, rest[0]), path)
        else:
            os.symlink(rest[0], path)
    print(f"made {made} files, {bytes_made} bytes, seed {seed}")
    return 0


def verify(root, files, seed, posix):
    differences = []

    def differs(path, expected, found):
        differences.append(f"{path!r}: expected {expected}, found {found}")

    expected_paths = set()
    same = bytes_same = 0
    for kind, relative, *rest in plan(files, seed, posix):
        expected_paths.add(relative)
        path = os.path.join(root, relative)
        try:
            found = os.lstat(path)
            if kind == "folder":
                check_kind(differs, relative, found, stat.S_IFDIR, rest[0] if posix else None)
            elif kind == "file":
                mode, number, size = rest
                if check_kind(differs, relative, found, stat.S_IFREG, mode if posix else None):
                    with open(path, "rb", buffering=0) as file:
                        data = file.readall()
                    if data == content(seed, number, size):
                        same += 1
                        bytes_same += size
                    else:
                        tell_content(differs, relative, content(seed, number, size), data)
            elif kind == "hard":
                target = os.lstat(os.path.join(root, rest[0]))
                if (found.st_ino, found.st_dev) != (target.st_ino, target.st_dev):
                    differs(relative, f"a link to {rest[0]!r}", "another file")
            elif check_kind(differs, relative, found, stat.S_IFLNK, None) and os.readlink(path) != rest[0]:
                differs(relative, f"a link to {rest[0]!r}", os.readlink(path))
        except OSError as error:
            differs(relative, kind, error.strerror)

    def cannot_list(error):
        differs(os.path.relpath(error.filename, root), "a folder", error.strerror)

    for folder, folder_names, file_names in os.walk(root, onerror=cannot_list):
        for name in folder_names + file_names:
            relative = os.path.relpath(os.path.join(folder, name), root)
            if relative not in expected_paths:
                differs(relative, "nothing", "an entry")

    if differences:
        for difference in differences[:DIFFERENCES_TOLD_MAX]:
            print(difference, file=sys.stderr)
        print(f"{len(differences)} differences from the tree of seed {seed}", file=sys.stderr)
        return 1
    print(f"verified {same} files, {bytes_same} bytes, seed {seed}")
    return 0


def check_kind(differs, path, found, kind, mode):
    if stat.S_IFMT(found.st_mode) != kind:
        differs(path, f"kind {kind:#o}", f"{stat.S_IFMT(found.st_mode):#o}")
        return False
    if mode is not None and stat.S_IMODE(found.st_mode) != mode:
        differs(path, f"mode {mode:#o}", f"{stat.S_IMODE(found.st_mode):#o}")
    return True


def tell_content(differs, path, expected, found):
    if len(expected) != len(found):
        differs(path, f"{len(expected)} bytes", f"{len(found)}")
        return
    at = next(at for at in range(len(expected)) if expected[at] != found[at])
    differs(path, f"{expected[at:at + 8].hex()} at byte {at}", found[at:at + 8].hex())


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "verify"))
    parser.add_argument("dir")
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--posix", action="store_true")
    options = parser.parse_args()
    if options.files < 1:
        parser.error(f"--files is {options.files}, expected at least 1")
    # Whatever the caller's umask and locale, a name's bytes are UTF-8 and its mode is the plan's.
    os.umask(0o022)
    action = make if options.action == "make" else verify
    try:
        return action(options.dir, options.files, options.seed, options.posix)
    except OSError as error:
        print(f"tree.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
