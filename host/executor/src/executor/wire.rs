//! What the host and a plugin's own process say to each other: frames of a length, a kind and a body.
//!
//! Pure. Jobs, answers and states, on which a run's delay depends, are laid down byte by byte; everything that is rare
//! is JSON. Both ends are this program, of one version. A frame that can't be read is an error, never a panic.

use coda_plugin_abi::ir::Metadata;
use coda_plugin_abi::{Amplitude, Error, ErrorCode, Gate, Operation, Outcome, Program, Stage, Target};

/// Longest frame.
pub const MAX_FRAME: usize = 1 << 31;

/// A frame under construction: four bytes of length, one of kind, the body.
pub struct FrameWriter(Vec<u8>);

impl FrameWriter {
    pub fn new(kind: u8) -> FrameWriter {
        FrameWriter(vec![0, 0, 0, 0, kind])
    }

    pub fn u16(&mut self, n: u16) {
        self.0.extend(n.to_le_bytes());
    }

    pub fn u32(&mut self, n: u32) {
        self.0.extend(n.to_le_bytes());
    }

    pub fn u64(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    pub fn f64(&mut self, n: f64) {
        self.0.extend(n.to_le_bytes());
    }

    pub fn len(&mut self, n: usize) {
        self.u64(n as u64);
    }

    pub fn text(&mut self, text: &str) {
        self.len(text.len());
        self.0.extend(text.as_bytes());
    }

    /// The finished frame; `None` when it is too long.
    pub fn finish(mut self) -> Option<Vec<u8>> {
        let body = self.0.len() - 4;
        if body > MAX_FRAME {
            return None;
        }
        self.0[..4].copy_from_slice(&(body as u32).to_le_bytes());
        Some(self.0)
    }
}

/// The body of a frame, read from its start.
pub struct FrameReader<'a>(&'a [u8]);

/// A frame that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a frame that can't be read")]
pub struct Garbled;

type Read<T> = Result<T, Garbled>;

impl<'a> FrameReader<'a> {
    pub fn new(body: &'a [u8]) -> FrameReader<'a> {
        FrameReader(body)
    }

    fn take(&mut self, n: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Garbled)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Garbled)
    }

    pub fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn f64(&mut self) -> Read<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// A number of things of `size` bytes each that must still be there.
    pub fn len(&mut self, size: usize) -> Read<usize> {
        let n = usize::try_from(self.u64()?).map_err(|_| Garbled)?;
        if n.checked_mul(size).is_some_and(|bytes| bytes <= self.0.len()) { Ok(n) } else { Err(Garbled) }
    }

    pub fn text(&mut self) -> Read<&'a str> {
        let n = self.len(1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Garbled)
    }
}

pub fn put_program(w: &mut FrameWriter, program: &Program) {
    let metadata = program.metadata();
    w.u16(program.target().code());
    w.u16(program.num_qubits());
    w.u32(metadata.optimization_level);
    [&metadata.source_hash, &metadata.compiled_at, &metadata.compiler_version]
        .into_iter()
        .for_each(|text| w.text(text));
    w.len(program.measurements().len());
    program.measurements().iter().for_each(|q| w.u16(*q));
    w.len(program.gates().len());
    w.0.reserve(14 * program.gates().len());
    for gate in program.gates() {
        w.u16(gate.kind);
        w.u16(gate.q0);
        w.u16(gate.q1);
        w.f64(gate.param);
    }
}

pub fn program(r: &mut FrameReader<'_>) -> Read<Program> {
    let target = Target::from_code(r.u16()?).ok_or(Garbled)?;
    let num_qubits = r.u16()?;
    let optimization_level = r.u32()?;
    let mut text = || Ok(r.text()?.to_string());
    let metadata = Metadata {
        source_hash: text()?,
        compiled_at: text()?,
        compiler_version: text()?,
        optimization_level,
    };
    let measurements: Vec<u16> = (0..r.len(2)?).map(|_| r.u16()).collect::<Read<_>>()?;
    let gates = r.len(14)?;
    let bytes = r.take(14 * gates)?;
    let gate = |b: &[u8]| {
        let n = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let param = f64::from_le_bytes([b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13]]);
        Gate { kind: n(0), q0: n(2), q1: n(4), reserved: 0, param }
    };
    let gates: Vec<Gate> = bytes.chunks_exact(14).map(gate).collect();
    let program = Program::new(target, num_qubits, gates, measurements).map_err(|_| Garbled)?;
    Ok(program.with_metadata(metadata))
}

pub fn put_error(w: &mut FrameWriter, error: &Error) {
    w.u32(error.code.code());
    w.u32(error.stage.code());
    w.u32(error.retryable.into());
    w.text(&error.text);
}

pub fn error(r: &mut FrameReader<'_>) -> Read<Error> {
    let (code, stage, retryable) = (r.u32()?, r.u32()?, r.u32()?);
    Ok(Error {
        code: ErrorCode::from_code(code),
        stage: Stage::from_code(stage),
        retryable: retryable != 0,
        text: r.text()?.to_string(),
    })
}

/// What became of one job; `None` when there is no answer.
pub fn put_answer(w: &mut FrameWriter, answer: Option<&Result<Outcome, Error>>) {
    match answer {
        None => w.u16(0),
        Some(Ok(outcome)) => {
            w.u16(1);
            let flags = u16::from(outcome.execution_time_ms.is_some())
                | u16::from(outcome.shots_completed.is_some()) << 1;
            w.u16(flags);
            w.f64(outcome.execution_time_ms.unwrap_or(0.0));
            w.u64(outcome.shots_completed.unwrap_or(0).cast_unsigned());
            w.len(outcome.counts.len());
            for (key, count) in &outcome.counts {
                w.text(key);
                w.u64(count.cast_unsigned());
            }
        }
        Some(Err(error)) => {
            w.u16(2);
            put_error(w, error);
        }
    }
}

pub fn answer(r: &mut FrameReader<'_>) -> Read<Option<Result<Outcome, Error>>> {
    Ok(match r.u16()? {
        0 => None,
        1 => {
            let flags = r.u16()?;
            let (time, shots) = (r.f64()?, r.u64()?.cast_signed());
            let counts = r.len(16)?;
            let counts = (0..counts)
                .map(|_| Ok((r.text()?.to_string(), r.u64()?.cast_signed())))
                .collect::<Read<_>>()?;
            Some(Ok(Outcome {
                counts,
                execution_time_ms: (flags & 1 != 0).then_some(time),
                shots_completed: (flags & 2 != 0).then_some(shots),
            }))
        }
        2 => Some(Err(error(r)?)),
        _ => return Err(Garbled),
    })
}

pub fn put_amplitudes(w: &mut FrameWriter, amplitudes: &[Amplitude]) {
    w.len(amplitudes.len());
    w.0.reserve(16 * amplitudes.len());
    for a in amplitudes {
        w.f64(a.re);
        w.f64(a.im);
    }
}

pub fn amplitudes(r: &mut FrameReader<'_>) -> Read<Vec<Amplitude>> {
    let n = r.len(16)?;
    (0..n).map(|_| Ok(Amplitude { re: r.f64()?, im: r.f64()? })).collect()
}

pub fn put_operations(w: &mut FrameWriter, operations: &[Operation]) {
    w.len(operations.len());
    for o in operations {
        w.u64(o.controls);
        w.u32(o.target);
        for m in o.matrix {
            w.f64(m.re);
            w.f64(m.im);
        }
    }
}

pub fn operations(r: &mut FrameReader<'_>) -> Read<Vec<Operation>> {
    let n = r.len(76)?;
    let one = |_| {
        let (controls, target) = (r.u64()?, r.u32()?);
        let mut matrix = [Amplitude::default(); 4];
        for m in &mut matrix {
            *m = Amplitude { re: r.f64()?, im: r.f64()? };
        }
        Ok(Operation { controls, target, reserved: 0, matrix })
    };
    (0..n).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coda_plugin_abi::GateKind;

    fn body(w: FrameWriter) -> Vec<u8> {
        w.finish().unwrap()[5..].to_vec()
    }

    #[test]
    fn what_is_written_is_read_and_every_cut_is_noticed() {
        let gates = [Gate::one(GateKind::Rx, 2, -0.25), Gate::two(GateKind::Cz, 0, 1, 0.0)];
        let metadata = Metadata {
            source_hash: "h".into(),
            compiled_at: "t".into(),
            compiler_version: "9".into(),
            optimization_level: 3,
        };
        let sent = Program::new(Target::Cz, 3, gates, [2, 0]).unwrap().with_metadata(metadata);
        let mut w = FrameWriter::new(1);
        put_program(&mut w, &sent);
        let bytes = body(w);
        assert_eq!(program(&mut FrameReader::new(&bytes)).unwrap(), sent);
        for cut in 0..bytes.len() {
            assert_eq!(program(&mut FrameReader::new(&bytes[..cut])), Err(Garbled), "cut at {cut}");
        }
        let outcome = Outcome {
            counts: vec![("01".into(), -3), (String::new(), 4)],
            execution_time_ms: Some(f64::INFINITY),
            shots_completed: None,
        };
        let error = Error::new(ErrorCode::Hardware, "cold").at(Stage::Readout).retryable();
        for sent in [None, Some(Ok(outcome)), Some(Err(error))] {
            let mut w = FrameWriter::new(1);
            put_answer(&mut w, sent.as_ref());
            let bytes = body(w);
            assert_eq!(answer(&mut FrameReader::new(&bytes)).unwrap(), sent);
            for cut in 0..bytes.len() {
                assert!(answer(&mut FrameReader::new(&bytes[..cut])).is_err());
            }
        }
        let a = |re, im| Amplitude { re, im };
        let op = Operation {
            controls: 5,
            target: 1,
            reserved: 0,
            matrix: [a(1.0, 2.0), a(3.0, 4.0), a(5.0, 6.0), a(7.0, 8.0)],
        };
        let mut w = FrameWriter::new(1);
        put_amplitudes(&mut w, &op.matrix);
        put_operations(&mut w, &[op, op]);
        let bytes = body(w);
        let mut r = FrameReader::new(&bytes);
        assert_eq!(
            (amplitudes(&mut r).unwrap(), operations(&mut r).unwrap()),
            (op.matrix.to_vec(), vec![op, op])
        );
    }

    #[test]
    fn lengths_beyond_the_frame_allocate_nothing() {
        let huge = u64::MAX.to_le_bytes();
        assert_eq!(amplitudes(&mut FrameReader::new(&huge)), Err(Garbled));
        assert_eq!(FrameReader::new(&huge).text(), Err(Garbled));
    }
}
