//! A private PostgreSQL server on loopback, where one is installed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::is_root;
use crate::wait::eventually_some;

pub struct Postgres {
    child: Child,
    _dir: TempDir,
    port: u16,
}

/// Where Debian and others put the programs.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|v| v.path().join("bin")).filter(|b| b.join("initdb").is_file()).collect();
    found.sort();
    found.pop()
}

impl Postgres {
    /// Starts one; `None` where none is installed, with a word.
    pub async fn start() -> Option<Postgres> {
        let Some(bin) = programs() else {
            eprintln!("SKIPPED: no PostgreSQL here (Debian: apt-get install postgresql)");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("coda-postgres-").tempdir().expect("a directory");
        // The server refuses to be root.
        let root = is_root();
        let data = dir.path().join("data");
        if root {
            use std::os::unix::fs::PermissionsExt as _;
            let open = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(dir.path(), open).expect("the directory can be opened up");
        }
        let command = |program: &str| {
            let path = bin.join(program);
            let mut command = match root {
                true => {
                    let mut command = Command::new("setpriv");
                    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
                    command
                }
                false => Command::new(path),
            };
            command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made =
            command("initdb").arg("-D").arg(&data).args(["-A", "trust", "-U", "coda", "--no-sync"]).status();
        assert!(made.expect("initdb runs").success(), "initdb");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        drop(listener);
        let child = command("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""])
            .spawn()
            .expect("postgres runs");
        let server = Postgres { child, _dir: dir, port };
        eventually_some("the server answers", async || {
            coda_host::reservation::log::Log::open(&server.url(), std::path::Path::new("/")).await.ok()
        })
        .await;
        Some(server)
    }

    pub fn url(&self) -> String {
        format!("postgres://coda@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The child is not reaped yet, so the id is still its own; it may have ended by itself. SIGQUIT ends its
        // children too.
        coda_host::sys::signal(self.child.id(), libc::SIGQUIT).ok();
        self.child.wait().ok();
    }
}
