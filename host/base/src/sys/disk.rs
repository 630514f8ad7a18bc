//! Free space on a file system.

use std::io;
use std::path::Path;

/// Free bytes for this user on the file system that holds `path`.
///
/// # Errors
/// When the path doesn't exist or can't be reached.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_that_of_df_in_bytes() {
        let free = free_bytes(Path::new("/")).unwrap();
        let df = std::process::Command::new("df").args(["--output=avail", "-B1", "/"]).output().unwrap();
        let text = String::from_utf8(df.stdout).unwrap();
        let expected: u64 = text.lines().last().unwrap().trim().parse().unwrap();
        // Others write meanwhile.
        assert!(free.abs_diff(expected) < 1 << 30, "{free} and {expected}");
        assert!(free_bytes(Path::new("/nowhere")).is_err());
    }
}
