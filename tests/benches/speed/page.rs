//! What it costs that people look: the same loads in turns, without and with browsers that have the page open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coda_host_tests::process::rss_mib;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::node::Kind;
use crate::site::{Site, circuit};
use crate::{NOOP, backlog, faster, percentile};

/// Pages that are open.
const VIEWERS: usize = 3;
const ROUNDS: usize = 5;

/// Reads the page's events until it is dropped.
async fn look(port: u16, viewers: usize, bytes: &Arc<AtomicU64>) -> JoinSet<()> {
    let mut reading = JoinSet::new();
    for _ in 0..viewers {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the local service");
        let request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("a request");
        let bytes = bytes.clone();
        reading.spawn(async move {
            let mut piece = vec![0; 64 << 10];
            while let Ok(n @ 1..) = stream.read(&mut piece).await {
                bytes.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
    }
    reading
}

pub async fn measure(jobs: usize) {
    println!("\nthe page: {ROUNDS} rounds of {jobs} jobs, in turns");
    println!(
        "  {:<16} {:>8} {:>12} {:>10} {:>14}",
        "pages open", "jobs/s", "CPU s/1,000", "RSS MiB", "KiB sent each"
    );
    let ir = circuit(5, 20);
    let mut best = [(0.0, f64::NAN); 2];
    let (mut rss, mut sent) = ([Vec::new(), Vec::new()], 0.0);
    for _ in 0..ROUNDS {
        for (place, viewers) in [0, VIEWERS].into_iter().enumerate() {
            let mut site = Site::new(None).await;
            let mut node = site.start(&Kind::Host, NOOP, true);
            node.ready().await;
            let bytes = Arc::default();
            let _reading = look(node.port(), viewers, &bytes).await;
            best[place] = faster(best[place], backlog(&mut site, node.pid(), jobs, &ir).await);
            rss[place].push(rss_mib(node.pid()));
            sent = bytes.load(Ordering::Relaxed) as f64 / 1024.0 / VIEWERS as f64;
        }
    }
    for (place, viewers) in [0, VIEWERS].into_iter().enumerate() {
        rss[place].sort_by(f64::total_cmp);
        let (rate, cpu) = best[place];
        let sent = if viewers == 0 { 0.0 } else { sent };
        println!(
            "  {viewers:<16} {rate:>8.0} {cpu:>12.3} {:>10.1} {sent:>14.0}",
            percentile(&rss[place], 0.5)
        );
    }
}
