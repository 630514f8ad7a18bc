//! A quantum computer behind the HTTP interface that IQM's device library speaks: an exact simulator of five qubits.
//!
//! It takes circuits of `prx`, `cz` and `measure`, and answers counts whose keys have one character for each qubit of
//! the measurement's locus, in its order. Tests have jobs wait, run for ever, or fail, and have requests refused.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rand::Rng as _;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The one token that is accepted.
pub const TOKEN: &str = "iqm-sesame";
const ALIAS: &str = "garnet";
/// In place of a status: the request is never answered.
const NO_ANSWER: u16 = 0;
const QUBITS: [&str; 5] = ["QB1", "QB2", "QB3", "QB4", "QB5"];

/// What becomes of jobs from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    Complete,
    /// They wait for this many looks before they are complete.
    Wait(u32),
    /// They run until they are cancelled.
    Run,
    Fail,
}

struct State {
    jobs: Jobs,
    /// Requests whose path has this in it are answered with this status, so many times.
    refused: Option<(String, u16, u32)>,
    healthy: bool,
    submitted: BTreeMap<String, Submitted>,
    requests: Vec<String>,
}

struct Submitted {
    payload: Value,
    counts: Value,
    jobs: Jobs,
    looks: u32,
    cancelled: bool,
}

/// Dropped, it closes its port and every connection.
pub struct IqmServer {
    url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl IqmServer {
    pub async fn start() -> IqmServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State {
            jobs: Jobs::Complete,
            refused: None,
            healthy: true,
            submitted: BTreeMap::new(),
            requests: Vec::new(),
        }));
        let task = tokio::spawn(serve(listener, state.clone()));
        IqmServer { url, state, task }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn set_jobs(&self, jobs: Jobs) {
        self.state().jobs = jobs;
    }

    pub fn set_healthy(&self, healthy: bool) {
        self.state().healthy = healthy;
    }

    /// Leaves the next requests whose path has this in it without an answer.
    pub fn hang(&self, path: &str, times: u32) {
        self.refuse(path, NO_ANSWER, times);
    }

    /// Answers the next requests whose path has this in it with a status.
    pub fn refuse(&self, path: &str, status: u16, times: u32) {
        self.state().refused = Some((path.into(), status, times));
    }

    /// `METHOD path` of every request so far.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// What was submitted as job `n`, counted from 1.
    pub fn payload(&self, n: usize) -> Value {
        self.state().submitted[&id(n)].payload.clone()
    }

    /// How many jobs were submitted, and how many of them were cancelled.
    pub fn job_counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.submitted.len(), state.submitted.values().filter(|job| job.cancelled).count())
    }
}

impl Drop for IqmServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no holder panics")
}

fn id(n: usize) -> String {
    format!("00000000-0000-0000-0000-{n:012}")
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        // A connection that breaks ends like one that is closed.
        connections.spawn(async move { connection(stream, state).await.ok() });
    }
}

async fn connection(stream: TcpStream, state: Arc<Mutex<State>>) -> Result<(), hyper::Error> {
    let service = service_fn(|request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(answer(request, &state).await) }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

async fn answer(request: Request<Incoming>, state: &Mutex<State>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().trim_start_matches('/').to_string();
    let is_post = head.method == Method::POST;
    let bearer = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let accepted = bearer == Some(&format!("Bearer {TOKEN}"));
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let refusal = {
        let mut state = lock(state);
        state.requests.push(format!("{} {path}", head.method));
        match &mut state.refused {
            Some((part, status, left)) if *left > 0 && path.contains(part.as_str()) => {
                *left -= 1;
                Some(*status)
            }
            _ => None,
        }
    };
    let (status, value) = match refusal {
        Some(NO_ANSWER) => std::future::pending().await,
        Some(status) => (status, json!({ "message": "refused by the test" })),
        None if !accepted => (401, json!({ "message": "no valid token" })),
        None if is_post => post(&path, &body, state),
        None => get(&path, state),
    };
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert("content-type", "application/json".parse().expect("a value"));
    response
}

fn missing(path: &str) -> (u16, Value) {
    (404, json!({ "message": format!("there is no {path}") }))
}

fn get(path: &str, state: &Mutex<State>) -> (u16, Value) {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "quantum-computers"] => (
            200,
            json!({ "quantum_computers": [{ "id": "qc-1", "alias": ALIAS, "display_name": "Garnet" }] }),
        ),
        ["api", "v1", "quantum-computers", _, "health"] => (200, json!({ "healthy": lock(state).healthy })),
        ["api", "v1", "quantum-computers", _, "queue-availability"] => (200, json!({ "queue_length": 0 })),
        ["api", "v1", "quantum-computers", ALIAS, "artifacts", "static-quantum-architectures"] => {
            (200, json!([architecture()]))
        }
        ["api", "v1", "calibration-sets", ALIAS, _, "dynamic-quantum-architecture"] => (200, calibration()),
        ["api", "v1", "calibration-sets", ALIAS, _, "metrics"] => (200, json!({ "observations": [] })),
        ["api", "v1", "jobs", id] => match lock(state).submitted.get_mut(*id) {
            Some(job) => (200, json!({ "id": id, "type": "circuit", "status": job.look() })),
            None => missing(path),
        },
        ["api", "v1", "jobs", id, "payload"] => {
            lock(state).submitted.get(*id).map_or_else(|| missing(path), |job| (200, job.payload.clone()))
        }
        ["api", "v1", "jobs", id, "artifacts", "measurement_counts"] => {
            lock(state).submitted.get(*id).map_or_else(|| missing(path), |job| (200, job.counts.clone()))
        }
        _ => missing(path),
    }
}

fn post(path: &str, body: &[u8], state: &Mutex<State>) -> (u16, Value) {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "jobs", ALIAS, "circuit"] => {
            let payload: Value = serde_json::from_slice(body).unwrap_or_default();
            let shots = payload["shots"].as_u64().unwrap_or_default();
            let circuits = payload["circuits"].as_array().map(Vec::as_slice).unwrap_or_default();
            let counts: Option<Vec<Value>> = circuits.iter().map(|circuit| run(circuit, shots)).collect();
            let Some(counts) = counts.filter(|counts| !counts.is_empty()) else {
                return (400, json!({ "message": "the circuit is not understood" }));
            };
            let mut state = lock(state);
            let (id, jobs) = (id(state.submitted.len() + 1), state.jobs);
            let job = Submitted { payload, counts: counts.into(), jobs, looks: 0, cancelled: false };
            state.submitted.insert(id.clone(), job);
            (200, json!({ "id": id, "queue_position": 3 }))
        }
        ["api", "v1", "jobs", id, "cancel"] => match lock(state).submitted.get_mut(*id) {
            Some(job) => {
                job.cancelled = true;
                (200, json!({}))
            }
            None => missing(path),
        },
        _ => missing(path),
    }
}

impl Submitted {
    fn look(&mut self) -> &'static str {
        self.looks += 1;
        match self.jobs {
            _ if self.cancelled => "cancelled",
            Jobs::Complete => "completed",
            Jobs::Wait(looks) if self.looks <= looks => "queued",
            Jobs::Wait(_) => "completed",
            Jobs::Run => "running",
            Jobs::Fail => "failed",
        }
    }
}

/// A line, and a resonator that the library lists behind the qubits.
fn architecture() -> Value {
    let pairs: Vec<[&str; 2]> = QUBITS.windows(2).map(|pair| [pair[0], pair[1]]).collect();
    let mut connectivity = json!(pairs);
    connectivity.as_array_mut().expect("a list").push(json!(["QB1", "COMPR1"]));
    json!({
        "dut_label": "M000_W0_A00_Z00", "qubits": QUBITS, "computational_resonators": ["COMPR1"],
        "connectivity": connectivity,
    })
}

fn calibration() -> Value {
    let gate =
        |loci: Value| json!({ "default_implementation": "a", "implementations": { "a": { "loci": loci } } });
    let singles: Vec<[&str; 1]> = QUBITS.iter().map(|name| [*name]).collect();
    let pairs: Vec<&[&str]> = QUBITS.windows(2).collect();
    json!({
        "calibration_set_id": "f0fb4be5-0000-0000-0000-000000000001", "qubits": QUBITS, "computational_resonators": ["COMPR1"],
        "gates": { "prx": gate(json!(singles)), "cz": gate(json!(pairs)), "measure": gate(json!(singles)) },
    })
}

/// A complex number.
type C = (f64, f64);

fn times(a: C, b: C) -> C {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn plus(a: C, b: C) -> C {
    (a.0 + b.0, a.1 + b.1)
}

/// Counts of a circuit; `None` when it isn't one.
fn run(circuit: &Value, shots: u64) -> Option<Value> {
    let mut state = vec![(0.0, 0.0); 1 << QUBITS.len()];
    state[0] = (1.0, 0.0);
    let mut measured = None;
    for instruction in circuit["instructions"].as_array()? {
        // Nothing follows the measurement, and there is one.
        if measured.is_some() {
            return None;
        }
        let position = |name: &Value| QUBITS.iter().position(|qubit| name == qubit);
        let locus: Vec<usize> =
            instruction["locus"].as_array()?.iter().map(position).collect::<Option<_>>()?;
        let args = &instruction["args"];
        match (instruction["name"].as_str()?, locus.as_slice()) {
            ("prx", [q]) => prx(&mut state, *q, args["angle"].as_f64()?, args["phase"].as_f64()?),
            ("cz", [a, b]) if a.abs_diff(*b) == 1 => {
                let both = 1 << a | 1 << b;
                for (_, amplitude) in state.iter_mut().enumerate().filter(|(i, _)| i & both == both) {
                    *amplitude = (-amplitude.0, -amplitude.1);
                }
            }
            ("measure", [_, ..]) => measured = Some((args["key"].as_str()?.to_string(), locus)),
            _ => return None,
        }
    }
    let (key, locus) = measured?;
    let mut sum = 0.0;
    let cumulative: Vec<f64> = state
        .iter()
        .map(|(re, im)| {
            sum += re * re + im * im;
            sum
        })
        .collect();
    let mut counts = BTreeMap::<String, u64>::new();
    let mut random = rand::rng();
    for _ in 0..shots {
        let at = random.random::<f64>() * sum;
        let index = cumulative.partition_point(|up_to| *up_to <= at).min(state.len() - 1);
        let text = locus.iter().map(|q| if index >> q & 1 == 1 { '1' } else { '0' }).collect();
        *counts.entry(text).or_default() += 1;
    }
    Some(json!({ "measurement_keys": [key], "counts": counts }))
}

/// A rotation about an axis in the plane of x and y: phase 0 is x, π/2 is y.
fn prx(state: &mut [C], q: usize, angle: f64, phase: f64) {
    let (cos, sin) = ((angle / 2.0).cos(), (angle / 2.0).sin());
    let up = times((0.0, -sin), (phase.cos(), -phase.sin()));
    let down = times((0.0, -sin), (phase.cos(), phase.sin()));
    for zero in (0..state.len()).filter(|index| index >> q & 1 == 0) {
        let (a, b) = (state[zero], state[zero | 1 << q]);
        state[zero] = plus(times((cos, 0.0), a), times(up, b));
        state[zero | 1 << q] = plus(times(down, a), times((cos, 0.0), b));
    }
}
