//! Files and processes that only claim to be plugins: no input ends the host, takes a second, or takes memory that it has
//! only announced.
//!
//! `CODA_FUZZ_INPUTS` (20,000) sets how many of each; `CODA_SEED` the sequence. `make fuzz` runs millions under a limit on
//! memory.

#![forbid(unsafe_code)]

use std::io::Cursor;
use std::path::Path;
use std::time::{Duration, Instant};

use coda_host::executor::elf;
use coda_host::executor::worker::frames::{
    ControlAnswer, Frame, ReceivedRequest, SMALL_FRAME, SlotAnswer, WorkerEvent, run_budget,
};
use coda_host_tests::artifacts::project_file;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const LIMIT: Duration = Duration::from_secs(1);

fn inputs() -> u64 {
    std::env::var("CODA_FUZZ_INPUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

fn random() -> StdRng {
    let seed = std::env::var("CODA_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(rand::random);
    println!("CODA_SEED={seed} CODA_FUZZ_INPUTS={}", inputs());
    StdRng::seed_from_u64(seed)
}

/// A number as hostile headers have it.
fn number(random: &mut StdRng) -> u64 {
    match random.random_range(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::from(u32::MAX),
        3 => u64::from(u16::MAX),
        4 => 1 << random.random_range(0..64),
        5 => random.random_range(0..70_000),
        6 => i64::MAX as u64,
        _ => random.random(),
    }
}

fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    if let Some(target) = bytes.get_mut(at..at + width) {
        target.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

#[test]
fn hostile_library_files_are_refused_soon() {
    let library =
        std::fs::read(project_file("tests/fixtures/interface-1.1/libacme_example_c.x86_64.so")).unwrap();
    let word = |at: usize| u64::from_le_bytes(library[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| u16::from_le_bytes(library[at..at + 2].try_into().unwrap()) as usize;
    let (segments, sections) = ((word(32), half(56) * 56), (word(40), half(60) * 64));
    let mut random = random();
    let (mut refused, mut slowest) = (0_u64, Duration::ZERO);
    for _ in 0..inputs() {
        let mut bytes = library.clone();
        for _ in 0..random.random_range(1..6) {
            let (start, len) = match random.random_range(0..8) {
                0 => (0, 64),
                1 => segments,
                2..=5 => sections,
                _ => (0, bytes.len()),
            };
            let at = start + random.random_range(0..len.max(1));
            let width = [1, 2, 4, 8][random.random_range(0..4)];
            // Most often a whole field.
            let at = if random.random_bool(0.8) { at - at % width } else { at };
            let value = number(&mut random);
            put(&mut bytes, at, width, value);
        }
        if random.random_bool(0.05) {
            bytes.truncate(random.random_range(0..bytes.len()));
        }
        let length = bytes.len() as u64;
        let begun = Instant::now();
        let found = elf::inspect_reader(Path::new("lib.so"), Cursor::new(&bytes), length);
        slowest = slowest.max(begun.elapsed());
        refused += u64::from(found.is_err());
        assert!(begun.elapsed() < LIMIT, "a file took {:?}", begun.elapsed());
    }
    println!("{refused} of {} library files refused; slowest {slowest:?}", inputs());
}

#[test]
fn a_file_that_claims_much_takes_little() {
    let library =
        std::fs::read(project_file("tests/fixtures/interface-1.1/libacme_example_c.x86_64.so")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.so");
    std::fs::write(&path, &library).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    let file = elf::open(&path).unwrap();
    assert!(elf::inspect_file(&path, &file).is_ok(), "a gigabyte of which nothing but the headers is read");
    let sections = u64::from_le_bytes(library[40..48].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(library[60..62].try_into().unwrap()) as usize;
    for field in [24, 32] {
        // Each section claims to begin where it likes, or to be as long as the file.
        let mut bytes = library.clone();
        for n in 0..count {
            put(&mut bytes, sections + 64 * n + field, 8, if field == 24 { 4096 } else { 1 << 29 });
        }
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        let begun = Instant::now();
        assert!(elf::inspect(&path).is_err());
        assert!(begun.elapsed() < LIMIT);
    }
    for (at, width, claims) in [(60, 2, "sections"), (56, 2, "segments")] {
        let mut bytes = library.clone();
        put(&mut bytes, at, width, 0xffff);
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        let error = elf::inspect(&path).unwrap_err().to_string();
        assert!(error.contains("claim") && error.contains(claims), "{error}");
    }
}

#[test]
fn hostile_frames_of_a_process_are_refused_soon() {
    let mut random = random();
    let (mut refused, mut slowest) = (0_u64, Duration::ZERO);
    let budget = run_budget(1000, 5);
    for _ in 0..inputs() {
        // A length that is right most often, a kind that exists most often, and numbers where numbers are expected.
        let mut body = Vec::new();
        for _ in 0..random.random_range(0..24) {
            let value = number(&mut random);
            let width = [2, 4, 8, 8][random.random_range(0..4)];
            body.extend_from_slice(&value.to_le_bytes()[..width]);
            if random.random_bool(0.2) {
                let text = [&b"{\"Created\":{}}"[..], b"[[[[[[[[", b"null", b"0101", b"\xff\xfe"]
                    [random.random_range(0..5)];
                body.extend((text.len() as u64).to_le_bytes());
                body.extend(text);
            }
        }
        let announced = if random.random_bool(0.9) { body.len() as u64 + 1 } else { number(&mut random) };
        let kind = random.random_range(0..20_u8);
        let mut bytes = (announced as u32).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(&body);
        let begun = Instant::now();
        let jobs = random.random_range(0..4);
        let read = match Frame::read(&mut bytes.as_slice(), budget.max(SMALL_FRAME)) {
            Ok(frame) => {
                // Read as everything that it might be meant to be.
                let answer = SlotAnswer::decode(&frame, jobs).is_ok();
                let control = ControlAnswer::decode(&frame).is_ok();
                let event = WorkerEvent::decode(&frame).is_ok();
                let request = ReceivedRequest::decode(&frame).is_ok();
                answer || control || event || request
            }
            Err(_) => false,
        };
        slowest = slowest.max(begun.elapsed());
        refused += u64::from(!read);
        assert!(begun.elapsed() < LIMIT, "a frame took {:?}", begun.elapsed());
    }
    println!("{refused} of {} frames refused; slowest {slowest:?}", inputs());
}
