//! One pass from JSON bytes to a checked [`Program`].
//!
//! Written by hand on serde's visitors rather than derived: gates go into the flat layout without a string
//! or a list per gate (that is what parsing costs), whole numbers may arrive as `3.0`, and errors carry the
//! gate's index. Numbers as text, booleans as numbers and `null` as a value are refused; unknown keys are
//! skipped; of a repeated key the last one counts.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    DEFAULT_COMPILER_VERSION, DEFAULT_OPTIMIZATION_LEVEL, Gate, GateKind, IrError, MAX_QUBITS, Program,
    Target, VERSION,
};

pub(super) fn parse(json: &[u8]) -> Result<Program, IrError> {
    let fault = Fault::default();
    let mut de = serde_json::Deserializer::from_slice(json);
    let parsed = Circuit(&fault).deserialize(&mut de).and_then(|c| de.end().map(|()| c));
    match parsed {
        Ok(raw) => raw.check(),
        Err(e) => Err(fault.0.take().unwrap_or_else(|| IrError::Malformed(clip(&e.to_string())))),
    }
}

/// Carries a typed error out of serde, whose own errors are text.
#[derive(Default)]
struct Fault(Cell<Option<IrError>>);

impl Fault {
    fn raise<E: serde::de::Error>(&self, error: IrError) -> E {
        let text = E::custom(&error);
        self.0.set(Some(error));
        text
    }

    /// Adds the place to an error that isn't typed yet.
    fn place<E: serde::de::Error>(&self, place: fmt::Arguments<'_>, error: E) -> E {
        match self.0.take() {
            Some(typed) => self.0.set(Some(typed)),
            None => self.0.set(Some(IrError::Malformed(format!("{place}: {}", clip(&error.to_string()))))),
        }
        error
    }
}

/// The parts as they came, in whatever order.
struct Raw {
    version: Option<String>,
    target: Option<String>,
    num_qubits: Option<Int>,
    gates: Option<Vec<Gate>>,
    /// The first qubit index that did not fit a `u16`, with its gate, where `u16::MAX` stands for it.
    wild_qubit: Option<(usize, Int)>,
    measurements: Option<Vec<u16>>,
    wild_measurement: Option<(usize, Int)>,
    metadata: Option<Metadata>,
}

struct Metadata {
    source_hash: Option<String>,
    compiled_at: Option<String>,
    compiler_version: Option<String>,
    optimization_level: Option<Int>,
}

impl Raw {
    fn check(self) -> Result<Program, IrError> {
        if let Some(version) = self.version.filter(|v| v != VERSION) {
            return Err(IrError::Version(shorten(version)));
        }
        let target = self.target.ok_or(IrError::Missing("target"))?;
        let target = Target::from_name(&target).ok_or_else(|| IrError::Target(shorten(target)))?;
        let num_qubits = self.num_qubits.ok_or(IrError::Missing("num_qubits"))?;
        let num_qubits = num_qubits
            .to_u16()
            .filter(|n| (1..=MAX_QUBITS).contains(n))
            .ok_or_else(|| IrError::NumQubits(num_qubits.to_string()))?;
        let gates = self.gates.ok_or(IrError::Missing("gates"))?;
        let measurements = self.measurements.ok_or(IrError::Missing("measurements"))?;
        let metadata = self.metadata.ok_or(IrError::Missing("metadata"))?;
        let source_hash = metadata.source_hash.ok_or(IrError::Missing("metadata.source_hash"))?;
        let compiled_at = metadata.compiled_at.ok_or(IrError::Missing("metadata.compiled_at"))?;
        let optimization_level = match metadata.optimization_level {
            None => DEFAULT_OPTIMIZATION_LEVEL,
            Some(level) => match level.to_u16() {
                Some(n @ 0..=3) => u32::from(n),
                _ => return Err(IrError::OptimizationLevel(level.to_string())),
            },
        };
        let program = Program {
            target,
            num_qubits,
            gates,
            measurements,
            source_hash,
            compiled_at,
            compiler_version: metadata.compiler_version.unwrap_or_else(|| DEFAULT_COMPILER_VERSION.into()),
            optimization_level,
        };
        // Whichever rule is broken first is told; an index that did not fit is out of range for certain, and
        // is told as it came.
        let as_it_came = |found: &mut String, index, wild: Option<(usize, Int)>| {
            if let Some((_, qubit)) = wild.filter(|(at, _)| *at == index && *found == u16::MAX.to_string()) {
                *found = qubit.to_string();
            }
        };
        program.validate().map_err(|mut e| {
            match &mut e {
                IrError::QubitRange { index, qubit, .. } => as_it_came(qubit, *index, self.wild_qubit),
                IrError::MeasurementRange { index, qubit, .. } => {
                    as_it_came(qubit, *index, self.wild_measurement);
                }
                _ => {}
            }
            e
        })?;
        Ok(program)
    }
}

/// Text from outside, cut to a length that an error message can carry.
fn shorten(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(64) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// Keeps both ends of a message of serde's, which may quote a whole document in the middle.
fn clip(text: &str) -> String {
    const START: usize = 100;
    const END: usize = 120;
    let chars = text.chars().count();
    if chars <= START + END {
        return text.to_string();
    }
    let start: String = text.chars().take(START).collect();
    let end: String = text.chars().skip(chars - END).collect();
    format!("{start}…{end}")
}

/// A whole number, or one that is not representable; kept for the message.
#[derive(Clone, Copy, Debug)]
enum Int {
    Exact(i64),
    Wild(f64),
}

impl Int {
    fn to_u16(self) -> Option<u16> {
        match self {
            Int::Exact(n) => u16::try_from(n).ok(),
            Int::Wild(_) => None,
        }
    }
}

impl fmt::Display for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Int::Exact(n) => write!(f, "{n}"),
            Int::Wild(x) => write!(f, "{x:e}"),
        }
    }
}

struct IntVisitor;

impl<'de> Visitor<'de> for IntVisitor {
    type Value = Int;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, v: i64) -> Result<Int, E> {
        Ok(Int::Exact(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Int, E> {
        Ok(i64::try_from(v).map_or(Int::Wild(v as f64), Int::Exact))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Int, E> {
        if v.fract() != 0.0 {
            return Err(E::custom(format_args!("{v} is not a whole number")));
        }
        // 2^53: beyond it the fraction test says nothing.
        Ok(if v.abs() < 9_007_199_254_740_992.0 { Int::Exact(v as i64) } else { Int::Wild(v) })
    }
}

#[derive(Clone, Copy)]
struct IntSeed;

impl<'de> DeserializeSeed<'de> for IntSeed {
    type Value = Int;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Int, D::Error> {
        d.deserialize_any(IntVisitor)
    }
}

struct FloatSeed;

impl<'de> DeserializeSeed<'de> for FloatSeed {
    type Value = f64;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<f64, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FloatSeed {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, v: f64) -> Result<f64, E> {
        Ok(v)
    }

    fn visit_i64<E>(self, v: i64) -> Result<f64, E> {
        Ok(v as f64)
    }

    fn visit_u64<E>(self, v: u64) -> Result<f64, E> {
        Ok(v as f64)
    }
}

/// Names of keys, matched without allocating.
struct Key<const N: usize>(&'static [&'static str; N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Key<N> {
    /// Index into the names, or `N` for a key that isn't ours.
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<usize, D::Error> {
        d.deserialize_str(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Key<N> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, v: &str) -> Result<usize, E> {
        Ok(self.0.iter().position(|k| *k == v).unwrap_or(N))
    }
}

struct Circuit<'f>(&'f Fault);

impl<'de> DeserializeSeed<'de> for Circuit<'_> {
    type Value = Raw;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Raw, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Circuit<'_> {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a circuit object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        const KEYS: &[&str; 6] = &["version", "target", "num_qubits", "gates", "measurements", "metadata"];
        let mut raw = Raw {
            version: None,
            target: None,
            num_qubits: None,
            gates: None,
            wild_qubit: None,
            measurements: None,
            wild_measurement: None,
            metadata: None,
        };
        while let Some(key) = map.next_key_seed(Key(KEYS))? {
            let name = *KEYS.get(key).unwrap_or(&"");
            let placed = |e| self.0.place(format_args!("{name}"), e);
            match key {
                0 => raw.version = Some(map.next_value().map_err(placed)?),
                1 => raw.target = Some(map.next_value().map_err(placed)?),
                2 => raw.num_qubits = Some(map.next_value_seed(IntSeed).map_err(placed)?),
                3 => {
                    let (gates, wild) = map.next_value_seed(Gates(self.0)).map_err(placed)?;
                    (raw.gates, raw.wild_qubit) = (Some(gates), wild);
                }
                4 => {
                    let (list, wild) = map.next_value_seed(Measurements).map_err(placed)?;
                    (raw.measurements, raw.wild_measurement) = (Some(list), wild);
                }
                5 => raw.metadata = Some(map.next_value_seed(MetadataSeed(self.0)).map_err(placed)?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(raw)
    }
}

struct MetadataSeed<'f>(&'f Fault);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = Metadata;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Metadata, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        const KEYS: &[&str; 4] = &["source_hash", "compiled_at", "compiler_version", "optimization_level"];
        let mut m = Metadata {
            source_hash: None,
            compiled_at: None,
            compiler_version: None,
            optimization_level: None,
        };
        while let Some(key) = map.next_key_seed(Key(KEYS))? {
            let name = *KEYS.get(key).unwrap_or(&"");
            let placed = |e| self.0.place(format_args!("metadata.{name}"), e);
            match key {
                0 => m.source_hash = Some(map.next_value().map_err(placed)?),
                1 => m.compiled_at = Some(map.next_value().map_err(placed)?),
                2 => m.compiler_version = Some(map.next_value().map_err(placed)?),
                3 => m.optimization_level = Some(map.next_value_seed(IntSeed).map_err(placed)?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(m)
    }
}

struct Measurements;

impl<'de> DeserializeSeed<'de> for Measurements {
    type Value = (Vec<u16>, Option<(usize, Int)>);

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measurements {
    type Value = (Vec<u16>, Option<(usize, Int)>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of qubit indices")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut list, mut wild) = (Vec::new(), None);
        while let Some(n) = seq.next_element_seed(IntSeed)? {
            if n.to_u16().is_none() && wild.is_none() {
                wild = Some((list.len(), n));
            }
            list.push(n.to_u16().unwrap_or(u16::MAX));
        }
        Ok((list, wild))
    }
}

struct Gates<'f>(&'f Fault);

impl<'de> DeserializeSeed<'de> for Gates<'_> {
    type Value = (Vec<Gate>, Option<(usize, Int)>);

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Gates<'_> {
    type Value = (Vec<Gate>, Option<(usize, Int)>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of gates")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut gates, mut wild) = (Vec::new(), None);
        loop {
            let index = gates.len();
            let seed = GateSeed { index, fault: self.0 };
            match seq.next_element_seed(seed) {
                Ok(None) => return Ok((gates, wild)),
                Ok(Some((gate, odd))) => {
                    wild = wild.or(odd.map(|q| (index, q)));
                    gates.push(gate);
                }
                Err(e) => return Err(self.0.place(format_args!("gate {index}"), e)),
            }
        }
    }
}

struct GateSeed<'f> {
    index: usize,
    fault: &'f Fault,
}

impl<'de> DeserializeSeed<'de> for GateSeed<'_> {
    type Value = (Gate, Option<Int>);

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for GateSeed<'_> {
    type Value = (Gate, Option<Int>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a gate object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const KEYS: &[&str; 3] = &["gate", "qubits", "params"];
        let GateSeed { index, fault } = self;
        let mut kind = None;
        let mut qubits: Option<(Inline<Int, 2>, usize)> = None;
        let mut params: (Inline<f64, 1>, usize) = ([None], 0);
        while let Some(key) = map.next_key_seed(Key(KEYS))? {
            match key {
                0 => kind = Some(map.next_value_seed(KindSeed { index, fault })?),
                1 => qubits = Some(map.next_value_seed(List(|| IntSeed))?),
                2 => params = map.next_value_seed(List(|| FloatSeed))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let kind: GateKind = kind.ok_or_else(|| A::Error::missing_field("gate"))?;
        let (qubits, found) = qubits.ok_or_else(|| A::Error::missing_field("qubits"))?;
        let expected = kind.num_qubits();
        if found != expected {
            return Err(fault.raise(IrError::QubitCount { index, gate: kind, expected, found }));
        }
        let (expected, (params, found)) = (kind.num_params(), params);
        if found != expected {
            return Err(fault.raise(IrError::ParamCount { index, gate: kind, expected, found }));
        }
        let index_of = |q: Option<Int>| q.map_or(Some(0), Int::to_u16);
        let wild = qubits.into_iter().flatten().find(|q| q.to_u16().is_none());
        let gate = Gate {
            kind: kind.code(),
            q0: index_of(qubits[0]).unwrap_or(u16::MAX),
            q1: index_of(qubits[1]).unwrap_or(u16::MAX),
            reserved: 0,
            param: params[0].unwrap_or(0.0),
        };
        Ok((gate, wild))
    }
}

struct KindSeed<'f> {
    index: usize,
    fault: &'f Fault,
}

impl<'de> DeserializeSeed<'de> for KindSeed<'_> {
    type Value = GateKind;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<GateKind, D::Error> {
        d.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KindSeed<'_> {
    type Value = GateKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a gate name")
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<GateKind, E> {
        GateKind::from_name(v).ok_or_else(|| {
            self.fault.raise(IrError::UnknownGate { index: self.index, name: shorten(v.to_string()) })
        })
    }
}

/// The first `N` values of a list.
type Inline<T, const N: usize> = [Option<T>; N];

/// A short list kept in place: its first `N` values and how many there were.
struct List<F, const N: usize>(F);

impl<'de, S, F, const N: usize> DeserializeSeed<'de> for List<F, N>
where
    F: Fn() -> S,
    S: DeserializeSeed<'de>,
    S::Value: Copy,
{
    type Value = (Inline<S::Value, N>, usize);

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de, S, F, const N: usize> Visitor<'de> for List<F, N>
where
    F: Fn() -> S,
    S: DeserializeSeed<'de>,
    S::Value: Copy,
{
    type Value = (Inline<S::Value, N>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut out, mut found) = ([None; N], 0);
        while let Some(value) = seq.next_element_seed((self.0)())? {
            if found < N {
                out[found] = Some(value);
            }
            found += 1;
        }
        Ok((out, found))
    }
}
