//! A private PostgreSQL server on loopback, where one is installed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::{descendants, is_root};
use crate::wait::eventually_some;

pub struct Postgres {
    child: Child,
    bin: PathBuf,
    dir: TempDir,
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
        let made = command(&bin, &dir, "initdb")
            .arg("-D")
            .arg(&data)
            .args(["-A", "trust", "-U", "coda", "--no-sync"])
            .status();
        assert!(made.expect("initdb runs").success(), "initdb");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        drop(listener);
        let child = serve(&bin, &dir, port);
        let server = Postgres { child, bin, dir, port };
        server.wait().await;
        Some(server)
    }

    async fn wait(&self) {
        eventually_some("the server answers", async || self.sql("SELECT 1").ok()).await;
    }

    /// Ends the server as an administrator would: connections are cut.
    pub fn stop(&mut self) {
        coda_host::sys::signal(self.child.id(), libc::SIGINT).expect("the server can be signalled");
        self.child.wait().expect("the server can be waited for");
    }

    /// Starts it again at its address, with what it had.
    pub async fn restart(&mut self) {
        self.child = serve(&self.bin, &self.dir, self.port);
        self.wait().await;
    }

    /// Stops every process of the server where it is: connections are made and nothing is answered.
    pub fn pause(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.signal_all(libc::SIGCONT);
    }

    fn signal_all(&self, signal: i32) {
        let server = self.child.id();
        // Before its children: it can't start another one meanwhile.
        coda_host::sys::signal(server, signal).expect("the server can be signalled");
        for child in descendants(server.cast_signed()) {
            // It may have ended.
            coda_host::sys::signal(child.cast_unsigned(), signal).ok();
        }
    }

    /// Runs statements with psql; what they say.
    ///
    /// # Errors
    /// With psql's own words.
    pub fn sql(&self, statements: &str) -> Result<String, String> {
        let mut psql = command(&self.bin, &self.dir, "psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-f", "-"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = psql.spawn().expect("psql runs");
        let mut input = child.stdin.take().expect("its input");
        // It may have ended before, without a connection.
        input.write_all(statements.as_bytes()).ok();
        drop(input);
        let output = child.wait_with_output().expect("psql ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    pub fn url(&self) -> String {
        format!("postgres://coda@127.0.0.1:{}/postgres", self.port)
    }
}

/// One of the server's programs, run as a user that it accepts.
fn command(bin: &Path, dir: &TempDir, program: &str) -> Command {
    let path = bin.join(program);
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
            command
        }
        false => Command::new(path),
    };
    command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn serve(bin: &Path, dir: &TempDir, port: u16) -> Child {
    command(bin, dir, "postgres")
        .arg("-D")
        .arg(dir.path().join("data"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""])
        .spawn()
        .expect("postgres runs")
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The child is not reaped yet, so the id is still its own; it may have ended by itself. SIGQUIT ends its
        // children too.
        coda_host::sys::signal(self.child.id(), libc::SIGQUIT).ok();
        self.signal_all(libc::SIGCONT);
        self.child.wait().ok();
    }
}
