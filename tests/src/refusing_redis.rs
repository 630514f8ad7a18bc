//! A Redis server that refuses chosen commands: a proxy before a real one, which answers those commands itself.
//!
//! Commands of one connection are served one after the other, so that answers keep their order. Only the frames of
//! the protocol are read, not what they mean.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What is refused now.
type Refusal = Arc<Mutex<Option<Refused>>>;

#[derive(Clone)]
struct Refused {
    /// In upper case.
    command: String,
    /// A part of what it is about; all of its kind when empty.
    key: String,
    answer: Vec<u8>,
}

/// Dropped, it closes its port and every connection.
pub struct RefusingRedis {
    port: u16,
    refusal: Refusal,
    task: JoinHandle<()>,
}

impl RefusingRedis {
    /// Stands before the server at a port of loopback.
    pub async fn start(to: u16) -> io::Result<RefusingRedis> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let refusal = Refusal::default();
        let task = tokio::spawn(serve(listener, to, refusal.clone()));
        Ok(RefusingRedis { port, refusal, task })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers a command with these bytes from now on; `{n}` in them is another number each time.
    pub fn refuse(&self, command: &str, answer: &str) {
        self.refuse_key(command, "", answer);
    }

    /// The same for commands whose arguments have this text in them.
    pub fn refuse_key(&self, command: &str, key: &str, answer: &str) {
        let command = command.to_uppercase();
        self.set(Some(Refused { command, key: key.into(), answer: answer.into() }));
    }

    /// Refuses nothing from now on.
    pub fn allow_all(&self) {
        self.set(None);
    }

    fn set(&self, refusal: Option<Refused>) {
        *self.refusal.lock().expect("no holder panics") = refusal;
    }
}

impl Drop for RefusingRedis {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, to: u16, refusal: Refusal) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let refusal = refusal.clone();
        // A connection that breaks ends like one that is closed.
        connections.spawn(async move { connection(client, to, &refusal).await.ok() });
    }
}

async fn connection(client: TcpStream, to: u16, refusal: &Refusal) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = TcpStream::connect(("127.0.0.1", to)).await?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let mut from_client = BufReader::new(from_client);
    let mut from_server = BufReader::new(from_server);
    loop {
        let mut command = Vec::new();
        read_frame(&mut from_client, &mut command).await?;
        let name = command_name(&command);
        let is_meant = |refused: &Refused| {
            refused.command == name && String::from_utf8_lossy(&command).contains(&refused.key)
        };
        let refused = refusal.lock().expect("no holder panics").clone().filter(is_meant);
        match refused {
            Some(Refused { answer, .. }) => to_client.write_all(numbered(&answer).as_bytes()).await?,
            None => relay(&command, &mut to_server, &mut from_server, &mut to_client).await?,
        }
    }
}

fn numbered(answer: &[u8]) -> String {
    static ANSWERS: AtomicU64 = AtomicU64::new(0);
    let n = ANSWERS.fetch_add(1, Ordering::Relaxed).to_string();
    String::from_utf8_lossy(answer).replace("{n}", &n)
}

async fn relay(
    command: &[u8],
    to_server: &mut OwnedWriteHalf,
    from_server: &mut BufReader<OwnedReadHalf>,
    to_client: &mut OwnedWriteHalf,
) -> io::Result<()> {
    to_server.write_all(command).await?;
    let mut answer = Vec::new();
    read_frame(from_server, &mut answer).await?;
    to_client.write_all(&answer).await
}

/// The first bulk string of a command, in upper case.
fn command_name(frame: &[u8]) -> String {
    let line = frame.split(|b| *b == b'\n').nth(2).unwrap_or_default();
    String::from_utf8_lossy(line).trim_end().to_uppercase()
}

/// Reads one frame of the protocol with everything in it.
async fn read_frame(from: &mut BufReader<OwnedReadHalf>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut open = 1u64;
    while open > 0 {
        open -= 1;
        let start = into.len();
        if from.read_until(b'\n', into).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length =
            || std::str::from_utf8(&into[start + 1..]).ok().and_then(|t| t.trim().parse::<i64>().ok());
        match into[start] {
            b'$' | b'=' | b'!' => {
                // A negative length is an absence.
                if let Some(length) = length().and_then(|n| u64::try_from(n).ok()) {
                    let taken = (&mut *from).take(length + 2).read_to_end(into).await?;
                    if taken as u64 != length + 2 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
            b'*' | b'~' | b'>' => open += length().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            b'%' => open += 2 * length().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            _ => {}
        }
    }
    Ok(())
}
