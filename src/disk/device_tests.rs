//! Goal: real block devices are fenced, measured and told apart as the layer promises. Method: loop
//! devices over files, with partitions, mounts, swap, and a frozen filesystem below, which holds I/O in
//! flight for as long as wanted.
//!
//! They need root. Without it they fail and say so; the lab has it.

use super::alias::{self, Place, Step, Why};
use super::identity::{Kind, Located};
use super::limits::WriteCache;
use super::lock::{InUse, PATIENCE};
use super::part::check_writable;
use super::{Access, Disk, Part, PartError};
use crate::kernel::Kernel;
use crate::units::MIB;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::{NamedTempFile, TempDir, TempPath};

/// Runs a program that must succeed; what it prints.
fn run(words: &[&str]) -> String {
    assert!(
        rustix::process::geteuid().is_root(),
        "needs root for loop devices: run it as root, or in the lab"
    );
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new(words[0])
        .args(&words[1..])
        .env("PATH", path)
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!(
            "{} does not run ({error}): run ci/setup, which installs it",
            words[0]
        )
    });
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn image(mebibytes: u64) -> TempPath {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(mebibytes * MIB).unwrap();
    file.into_temp_path()
}

/// Undoes something when the test ends, however it ends.
struct Undo(Vec<String>);

impl Undo {
    fn with(words: &[&str]) -> Undo {
        Undo(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let undone = Command::new(&self.0[0]).args(&self.0[1..]).output();
        assert!(
            undone.is_ok_and(|output| output.status.success()) || std::thread::panicking(),
            "{:?}",
            self.0
        );
    }
}

/// Two searches for a free device at once find the same one, and open it.
static SEARCH: Mutex<()> = Mutex::new(());

/// A loop device. Fields are dropped in order: first it is taken down, then its file goes.
struct Loop {
    path: PathBuf,
    _down: Undo,
}

impl Loop {
    fn over(file: &Path, options: &[&str]) -> Loop {
        let _alone = SEARCH.lock();
        let words = [&["losetup", "--find", "--show"], options, &[text(file)]].concat();
        let path = run(&words);
        Loop {
            _down: Undo::with(&["losetup", "--detach", &path]),
            path: path.into(),
        }
    }

    fn partition(&self, number: u32) -> PathBuf {
        format!("{}p{number}", self.path.display()).into()
    }
}

fn mount(device: &Path, options: &[&str]) -> (Undo, TempDir) {
    let at = TempDir::new().unwrap();
    run(&[&["mount"], options, &[text(device), text(at.path())]].concat());
    (Undo::with(&["umount", text(at.path())]), at)
}

/// A process that opens a path in a way, says so, and then does something.
fn process(path: &Path, flags: &str, then: &str) -> Child {
    let script = format!(
        "use Fcntl ':DEFAULT', ':flock'; $| = 1; sysopen(F, $ARGV[0], {flags}) or die; {then}"
    );
    let perl = Command::new("perl")
        .args(["-e", &script])
        .arg(path)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn();
    let mut child = perl.expect("perl does not run: run ci/setup, which installs it");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "open\n");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn open(path: &Path) -> Result<Part, PartError> {
    Part::open(path, Access::ReadWrite)
}

#[track_caller]
fn refusal(opened: Result<Part, PartError>) -> InUse {
    match opened {
        Err(PartError::InUse(in_use)) => in_use,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

fn conforming(block_size: &str) -> (Part, (Loop, TempPath)) {
    let file = image(1);
    let device = Loop::over(&file, &["--sector-size", block_size]);
    (open(&device.path).unwrap(), (device, file))
}

mod on_a_device_with_small_blocks {
    crate::disk::conformance::suite!(super::conforming("512"));
}

mod on_a_device_with_large_blocks {
    crate::disk::conformance::suite!(super::conforming("4096"));
}

#[test]
fn a_block_device_tells_its_size_and_its_limits() {
    let file = image(3);
    for block_size in [512, 4096] {
        let device = Loop::over(&file, &["--sector-size", &block_size.to_string()]);
        let part = open(&device.path).unwrap();
        assert_eq!((part.kind(), part.size()), (Kind::BlockDevice, 3 * MIB));
        assert_eq!(part.unallocated().unwrap(), None);
        let limits = part.limits();
        assert_eq!(limits.block_size, block_size);
        assert_eq!(limits.write_cache, WriteCache::WriteBack);
        assert!(!limits.fua);
        assert!(limits.dsync_flushes_earlier_writes);
        assert!(limits.zeroes_without_writing);
        assert!(
            limits.max_io_bytes.is_multiple_of(4096) && (4096..=MIB).contains(&limits.max_io_bytes),
            "{limits:?}"
        );
    }
}

#[test]
fn a_device_node_without_a_disk_is_missing() {
    let folder = TempDir::new().unwrap();
    // A driver that nobody has, and a loop device that shows nothing.
    let node = folder.path().join("node");
    run(&["mknod", text(&node), "b", "60", "0"]);
    let _alone = SEARCH.lock();
    let free = PathBuf::from(run(&["losetup", "--find"]));
    for path in [node, free] {
        let error = open(&path).unwrap_err();
        assert!(matches!(error, PartError::Missing { .. }), "{error}");
    }
}

#[test]
fn a_device_that_takes_no_writes_is_opened_for_reading_alone() {
    let file = image(1);
    let device = Loop::over(&file, &[]);
    let located = Located::find(&device.path).unwrap();
    check_writable(&located).unwrap();
    run(&["blockdev", "--setro", text(&device.path)]);
    let expected = format!(
        "{path}: is read-only; make it writable: blockdev --setrw {path}",
        path = device.path.display()
    );
    assert_eq!(open(&device.path).unwrap_err().to_string(), expected);
    assert_eq!(check_writable(&located).unwrap_err().to_string(), expected);
    drop(Part::open(&device.path, Access::ReadOnly).unwrap());
    run(&["blockdev", "--setrw", text(&device.path)]);
    drop(open(&device.path).unwrap());
}

#[test]
fn a_file_on_a_filesystem_that_takes_no_writes_is_opened_for_reading_alone() {
    let disk = image(16);
    run(&["mke2fs", "-q", "-t", "ext4", text(&disk)]);
    let device = Loop::over(&disk, &[]);
    let (mounted, at) = mount(&device.path, &[]);
    let path = at.path().join("part");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    run(&["mount", "-o", "remount,ro", text(at.path())]);
    let located = Located::find(&path).unwrap();
    for error in [
        open(&path).unwrap_err(),
        check_writable(&located).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(
            error.contains("is mounted read-only; make it writable: mount -o remount,rw"),
            "{error}"
        );
    }
    drop(Part::open(&path, Access::ReadOnly).unwrap());
    run(&["mount", "-o", "remount,rw", text(at.path())]);
    run(&["chattr", "+i", text(&path)]);
    for error in [
        open(&path).unwrap_err(),
        check_writable(&located).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("make it writable: chattr -i -a"), "{error}");
    }
    run(&["chattr", "-i", text(&path)]);
    drop(open(&path).unwrap());
    drop(mounted);
}

#[test]
fn a_device_is_locked_against_this_process_and_others() {
    let file = image(1);
    let device = Loop::over(&file, &[]);
    let first = open(&device.path).unwrap();
    let in_use = refusal(open(&device.path));
    assert!(matches!(in_use, InUse::Twice { .. }), "{in_use}");
    drop(first);

    let holder = process(
        &device.path,
        "O_RDWR | O_EXCL",
        "print qq(open\\n); sleep 60",
    );
    let began = Instant::now();
    let in_use = refusal(Part::open_patiently(
        &device.path,
        Access::ReadWrite,
        PATIENCE,
        &mut |_| {},
    ));
    assert!(began.elapsed() < PATIENCE / 2, "it waited");
    assert!(
        matches!(&in_use, InUse::Process { holder: named, .. } if named.pid == holder.id()),
        "{in_use}"
    );
    let mut unfenced = Part::open_unfenced(&device.path).unwrap();
    unfenced
        .read(
            crate::units::Offset(0),
            &mut super::buffer::AlignedBuffer::zeroed(4096),
        )
        .unwrap();
    drop(unfenced);

    kill(holder);
    open(&device.path).unwrap();
}

#[test]
fn a_process_that_has_a_device_open_without_locking_it_does_not_matter() {
    let file = image(1);
    let device = Loop::over(&file, &[]);
    let watcher = process(&device.path, "O_RDONLY", "print qq(open\\n); sleep 60");
    open(&device.path).unwrap();
    kill(watcher);
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point() {
    for (mkfs, mebibytes) in [("mkfs.ext4", 8), ("mkfs.btrfs", 128)] {
        let file = image(mebibytes);
        let device = Loop::over(&file, &[]);
        run(&[mkfs, "-q", text(&device.path)]);
        let (mounted, at) = mount(&device.path, &[]);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let in_use = refusal(Part::open_patiently(
                &device.path,
                access,
                PATIENCE,
                &mut |_| {},
            ));
            assert!(
                matches!(&in_use, InUse::Mounted { at: found, .. } if found == at.path()),
                "{mkfs}: {in_use}"
            );
        }
        drop(mounted);
        open(&device.path).unwrap();
    }
}

#[test]
fn swap_is_refused_on_a_device() {
    let file = image(1);
    let device = Loop::over(&file, &[]);
    run(&["mkswap", text(&device.path)]);
    run(&["swapon", text(&device.path)]);
    let off = Undo::with(&["swapoff", text(&device.path)]);
    let in_use = refusal(open(&device.path));
    assert!(matches!(in_use, InUse::Swap { .. }), "{in_use}");
    drop(off);
    open(&device.path).unwrap();
}

#[test]
fn a_file_under_a_loop_device_is_refused_and_told_apart_from_others() {
    let (file, other) = (image(1), image(1));
    let device = Loop::over(&file, &[]);
    let in_use = refusal(open(&file));
    let name = device.path.file_name().unwrap().to_str().unwrap();
    assert!(
        matches!(&in_use, InUse::Device { device, .. } if device == name),
        "{in_use}"
    );
    open(&other).unwrap();

    let find = |path: &Path| Located::find(path).unwrap();
    let (file, other, loop_device) = (find(&file), find(&other), find(&device.path));
    let kernel = Kernel::running();
    assert_eq!(
        alias::check(&kernel, &[Place::whole(&other), Place::whole(&loop_device)]),
        Ok(())
    );
    let overlap =
        alias::check(&kernel, &[Place::whole(&file), Place::whole(&loop_device)]).unwrap_err();
    assert_eq!(
        overlap.why,
        Why::Above {
            above: device.path.clone(),
            how: Step::Loop
        }
    );
}

#[test]
fn partitions_and_their_disk_exclude_each_other_and_neighbours_do_not() {
    let file = image(16);
    run(&["sgdisk", "--new=1:2048:+4M", "--new=2:0:+4M", text(&file)]);
    let disk = Loop::over(&file, &[]);
    let (one, two) = (disk.partition(1), disk.partition(2));
    // Not every kernel knows the table; they are told to it one by one.
    run(&["partx", "--add", text(&disk.path)]);
    let _gone = Undo::with(&["partx", "--delete", text(&disk.path)]);
    wait_for(&two);
    let find = |path: &Path| Located::find(path).unwrap();
    let (whole, first, second) = (find(&disk.path), find(&one), find(&two));
    let kernel = Kernel::running();

    assert_eq!(
        alias::check(&kernel, &[Place::whole(&first), Place::whole(&second)]),
        Ok(())
    );
    let overlap =
        alias::check(&kernel, &[Place::whole(&second), Place::whole(&whole)]).unwrap_err();
    assert_eq!(
        overlap.why,
        Why::Above {
            above: two.clone(),
            how: Step::Partition
        }
    );

    let part_one = open(&one).unwrap();
    assert_eq!(part_one.size(), 4 * MIB);
    let part_two = open(&two).unwrap();
    let in_use = refusal(open(&disk.path));
    assert!(matches!(in_use, InUse::Twice { .. }), "{in_use}");
    drop((part_one, part_two));
    let limits = |path: &Path| *open(path).unwrap().limits();
    assert_eq!(limits(&one), limits(&disk.path));

    run(&["mkfs.ext4", "-q", text(&one)]);
    let (mounted, at) = mount(&one, &[]);
    for path in [&disk.path, &one] {
        let in_use = refusal(open(path));
        assert!(
            matches!(&in_use, InUse::Mounted { at: found, .. } if found == at.path()),
            "{in_use}"
        );
    }
    open(&two).unwrap();
    drop(mounted);
    open(&disk.path).unwrap();
}

/// The kernel makes device nodes in its own time.
fn wait_for(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !path.exists() {
        assert!(
            Instant::now() < deadline,
            "{} does not appear",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A filesystem that can be stopped with I/O in flight, and a file in it that has all its space.
struct Stoppable {
    file: PathBuf,
    thaw: Option<Undo>,
    at: TempDir,
    // In the order in which they are taken down.
    _mounted: Undo,
    _device: Loop,
    _image: TempPath,
}

impl Stoppable {
    fn new() -> Stoppable {
        let image = image(16);
        let device = Loop::over(&image, &[]);
        run(&["mkfs.ext4", "-q", text(&device.path)]);
        let (mounted, at) = mount(&device.path, &[]);
        let file = at.path().join("file");
        std::fs::write(&file, vec![0; 1 << 20]).unwrap();
        run(&["sync", "-f", text(&file)]);
        Stoppable {
            file,
            thaw: None,
            at,
            _mounted: mounted,
            _device: device,
            _image: image,
        }
    }

    fn freeze(&mut self) {
        run(&["fsfreeze", "--freeze", text(self.at.path())]);
        self.thaw = Some(Undo::with(&[
            "fsfreeze",
            "--unfreeze",
            text(self.at.path()),
        ]));
    }

    fn thaw(&mut self) {
        self.thaw = None;
    }
}

/// Starts a write that does not end, kills its process, and opens the part with patience; the
/// filesystem goes on when the first report of waiting comes.
#[track_caller]
fn check_that_the_dead_are_waited_for(
    stoppable: &mut Stoppable,
    part: &Path,
    flags: &str,
    lock: &str,
) {
    // It writes when it is told to: once the filesystem is frozen.
    let then = format!(
        "{lock} print qq(open\\n); <STDIN>; print qq(writing\\n); syswrite(F, 'x' x 4096); sleep 60"
    );
    let mut writer = process(part, flags, &then);
    stoppable.freeze();
    std::io::Write::write_all(writer.stdin.as_mut().unwrap(), b"go\n").unwrap();
    wait_until_it_hangs(writer.id());
    writer.kill().unwrap();
    assert_eq!(
        writer.try_wait().unwrap(),
        None,
        "the write keeps it from dying"
    );

    // Without patience it is refused, and not as the property of a living process.
    let in_use = refusal(open(part));
    assert!(matches!(in_use, InUse::Nobody { .. }), "{in_use}");
    let mut reports = 0;
    let opened = Part::open_patiently(part, Access::ReadWrite, PATIENCE, &mut |waiting| {
        assert_eq!(waiting.path, part);
        reports += 1;
        stoppable.thaw();
    });
    stoppable.thaw();
    writer.wait().unwrap();
    opened.unwrap();
    assert!(reports > 0, "it did not wait");
}

fn wait_until_it_hangs(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        if stat.contains(") D ") {
            return;
        }
        assert!(Instant::now() < deadline, "the write came back: {stat}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_device_is_not_opened_while_a_write_of_a_killed_process_is_in_flight() {
    let mut stoppable = Stoppable::new();
    let device = Loop::over(&stoppable.file, &[]);
    check_that_the_dead_are_waited_for(
        &mut stoppable,
        &device.path,
        "O_RDWR | O_EXCL | O_SYNC",
        "",
    );
    drop(device);
}

#[test]
fn a_file_is_not_opened_while_a_write_of_a_killed_process_is_in_flight() {
    let mut stoppable = Stoppable::new();
    let file = stoppable.file.clone();
    check_that_the_dead_are_waited_for(
        &mut stoppable,
        &file,
        "O_RDWR",
        "flock(F, LOCK_EX) or die;",
    );
}

#[test]
fn a_file_on_btrfs_is_fenced_although_the_kernel_lists_its_lock_under_another_number() {
    let image = image(128);
    let device = Loop::over(&image, &[]);
    run(&["mkfs.btrfs", "-q", text(&device.path)]);
    let (_mounted, at) = mount(&device.path, &[]);
    let file = at.path().join("file");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();

    let part = open(&file).unwrap();
    assert_eq!(
        part.limits().block_size,
        4096,
        "less than a block is no direct I/O there"
    );
    assert!(part.limits().zeroes_without_writing);
    let in_use = refusal(open(&file));
    assert!(matches!(in_use, InUse::Twice { .. }), "{in_use}");
    drop(part);
    let holder = process(
        &file,
        "O_RDWR",
        "flock(F, LOCK_EX) or die; print qq(open\\n); sleep 60",
    );
    let in_use = refusal(Part::open_patiently(
        &file,
        Access::ReadWrite,
        PATIENCE,
        &mut |_| {},
    ));
    assert!(
        matches!(&in_use, InUse::Process { holder: named, .. } if named.pid == holder.id()),
        "{in_use}"
    );
    kill(holder);
    open(&file).unwrap();
}
