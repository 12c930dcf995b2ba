//! `/dev/ujournal/NAME`: the name under which an array is mounted, whatever number its device has.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

/// Makes `link` point to `block`, whatever it pointed to before, in one step.
pub fn make(link: &Path, block: &Path) -> io::Result<()> {
    let folder = link.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new()
        .mode(0o755)
        .recursive(true)
        .create(folder)?;
    let mut name = link
        .file_name()
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_owned();
    // No array's name begins with a point.
    name.push(".new");
    let new = PathBuf::from(folder).join(format!(".{}", name.display()));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    symlink(block, &new)?;
    fs::rename(&new, link)
}

/// Removes `link` if it still points to `block`.
pub fn remove(link: &Path, block: &Path) -> io::Result<()> {
    match fs::read_link(link) {
        Ok(target) if target == block => fs::remove_file(link),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_replaced_and_removed_only_by_whom_it_points_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("ujournal/vol0");
        let [old, new] = ["/dev/ublkb0", "/dev/ublkb1"].map(Path::new);
        remove(&link, old).expect("nothing to remove");
        make(&link, old).expect("made");
        make(&link, new).expect("replaced");
        assert_eq!(fs::read_link(&link).expect("a link"), new);
        remove(&link, old).expect("left alone");
        assert_eq!(fs::read_link(&link).expect("a link"), new);
        remove(&link, new).expect("removed");
        assert!(fs::symlink_metadata(&link).is_err());
        assert_eq!(
            fs::read_dir(folder.path().join("ujournal"))
                .expect("a folder")
                .count(),
            0
        );
    }
}
