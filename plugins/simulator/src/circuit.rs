//! One circuit from gates to counts.
//!
//! Contract: everything that can be refused is refused before any large allocation. Qubits that no gate
//! touches stay 0 and cost nothing, so the size of a circuit is the number of qubits its gates touch.

use coda_plugin_abi::{Connectivity, Error, ErrorCode, Op, ProgramRef, Stage};
use rand::Rng;

use crate::config::Settings;
use crate::fuse::{C, Plan, Planner};
use crate::kernel::{State, bytes_needed};
use crate::noise::{self, Pattern};
use crate::sample::{Tally, multinomial};

/// What an outcome costs beside the characters of its key: here, at the boundary, and in the host.
const OUTCOME_BYTES: u64 = 96;
/// Outcomes emitted between two looks at `watch`.
const WATCH_EVERY: u64 = 1 << 16;

/// Tells how far the run is; returns whether to go on.
pub type Watch<'a> = dyn FnMut(u64, u64) -> bool + 'a;

pub fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "the run ended because the job was cancelled").at(Stage::Run)
}

/// Runs a circuit and returns its counts.
///
/// # Errors
/// When the device can't run it, it is too large, or `watch` says stop.
pub fn run<R: Rng>(
    program: ProgramRef<'_>,
    shots: u32,
    settings: &Settings,
    rng: &mut R,
    watch: &mut Watch<'_>,
) -> Result<Vec<(String, i64)>, Error> {
    let ops = read_gates(program, &settings.device.connectivity)?;
    let noise = &settings.noise;
    let register = Register::new(program, &ops, noise.depolarizing > 0.0);
    let key_bytes = OUTCOME_BYTES + program.measurements().len() as u64;
    let limit = settings.max_memory_bytes / key_bytes;
    if limit == 0 {
        let text = format!(
            "one key of {} characters is more than `max_memory_mb` allows; measure fewer qubits",
            program.measurements().len()
        );
        return Err(Error::new(ErrorCode::Resources, text).at(Stage::Compile));
    }
    let mut tally = Tally::new(usize::try_from(limit).unwrap_or(usize::MAX));
    if register.measured_bits().next().is_none() {
        // Nothing that is measured depends on a gate.
        tally.add(0, shots.into())?;
    } else {
        check_memory(register.size, settings.max_memory_bytes)?;
        let patterns = noise::patterns(&ops, noise.depolarizing, noise.trajectories, shots, rng);
        let total = patterns.len() as u64;
        for (done, (pattern, share)) in (0u64..).zip(&patterns) {
            let plan = register.plan(&ops, pattern);
            let mut inner = |stage: usize, stages: usize| {
                let stages = stages as u64 + 1;
                watch(done * stages + stage as u64, total * stages)
            };
            let mut state = State::zero(register.size).map_err(|_| no_memory(register.size))?;
            state.run(&plan, &mut inner).map_err(|_| cancelled())?;
            sample(state.into_weights(), &register, &plan, *share, rng, &mut tally, watch)?;
        }
    }
    if noise.readout > 0.0 {
        tally = tally.flip(register.measured.len(), noise.readout, rng)?;
    }
    let counts = tally.into_counts();
    Ok(counts.into_iter().map(|(outcome, n)| (register.key(program, outcome), n as i64)).collect())
}

fn read_gates(program: ProgramRef<'_>, connectivity: &Connectivity) -> Result<Vec<Op>, Error> {
    let unsupported = |text| Error::new(ErrorCode::Unsupported, text).at(Stage::Compile);
    let mut ops = Vec::with_capacity(program.gates().len());
    for (index, gate) in program.gates().iter().enumerate() {
        let Some(op) = gate.op() else {
            let kind = gate.kind;
            return Err(unsupported(format!("gate {index}: this simulator has no gate of code {kind}")));
        };
        if let Some((a, b)) = pair(&op)
            && !connectivity.allows(a, b)
        {
            let hint = if connectivity.allows(b, a) { " in this direction" } else { "" };
            let text = format!("gate {index}: qubits {a} and {b} are not connected on this device{hint}");
            return Err(unsupported(text));
        }
        ops.push(op);
    }
    Ok(ops)
}

fn pair(op: &Op) -> Option<(u16, u16)> {
    match *op {
        Op::Cz { a, b } | Op::Iswap { a, b } | Op::Cp { a, b, .. } => Some((a, b)),
        Op::Cnot { control, target } => Some((control, target)),
        _ => None,
    }
}

/// First and second qubit; the second is the first for gates on one.
fn qubits(op: &Op) -> (u16, u16) {
    match *op {
        Op::Rx { q, .. }
        | Op::Ry { q, .. }
        | Op::Rz { q, .. }
        | Op::X90 { q }
        | Op::YMinus90 { q }
        | Op::VirtualZ { q, .. }
        | Op::Id { q, .. } => (q, q),
        Op::Cz { a, b } | Op::Iswap { a, b } | Op::Cp { a, b, .. } => (a, b),
        Op::Cnot { control, target } => (control, target),
    }
}

fn check_memory(size: usize, allowed: u64) -> Result<(), Error> {
    let needed = bytes_needed(size);
    if needed <= allowed {
        return Ok(());
    }
    let text = format!(
        "the circuit's gates touch {size} qubits, whose state needs {} MiB; this simulator allows {} MiB \
         (`max_memory_mb`)",
        needed >> 20,
        allowed >> 20
    );
    Err(Error::new(ErrorCode::Resources, text).at(Stage::Compile))
}

fn no_memory(size: usize) -> Error {
    let text = format!(
        "the machine could not provide {} MiB for the state of {size} qubits; try again when less is running",
        bytes_needed(size) >> 20
    );
    Error::new(ErrorCode::Resources, text).at(Stage::Run).retryable()
}

/// Which qubits are simulated and which are measured.
struct Register {
    /// Place of each qubit among the simulated ones.
    slots: Vec<Option<usize>>,
    size: usize,
    /// Distinct measured qubits; bit `j` of an outcome is that of `measured[j]`.
    measured: Vec<u16>,
    /// Place of each qubit in `measured`.
    outcome_bits: Vec<usize>,
}

impl Register {
    fn new(program: ProgramRef<'_>, ops: &[Op], idle_matters: bool) -> Register {
        let n = usize::from(program.num_qubits());
        let mut touched = vec![false; n];
        for op in ops {
            if idle_matters || !matches!(op, Op::Id { .. }) {
                let (a, b) = qubits(op);
                touched[usize::from(a)] = true;
                touched[usize::from(b)] = true;
            }
        }
        let mut size = 0;
        let slots = touched
            .iter()
            .map(|t| {
                t.then(|| {
                    size += 1;
                    size - 1
                })
            })
            .collect();
        let (mut measured, mut outcome_bits) = (Vec::new(), vec![usize::MAX; n]);
        for &q in program.measurements() {
            let bit = &mut outcome_bits[usize::from(q)];
            if *bit == usize::MAX {
                *bit = measured.len();
                measured.push(q);
            }
        }
        Register { slots, size, measured, outcome_bits }
    }

    /// Simulated qubit and outcome bit of each measured qubit that a gate touches.
    fn measured_bits(&self) -> impl Iterator<Item = (usize, usize)> {
        self.measured.iter().enumerate().filter_map(|(bit, q)| Some((self.slots[usize::from(*q)]?, bit)))
    }

    fn plan(&self, ops: &[Op], pattern: &Pattern) -> Plan {
        use std::f64::consts::FRAC_PI_2;
        let slot = |q: u16| self.slots[usize::from(q)].unwrap_or(0);
        let mut planner = Planner::new(self.size);
        let mut errors = pattern.iter().peekable();
        for (index, op) in ops.iter().enumerate() {
            match *op {
                Op::Rx { q, angle } => planner.rx(slot(q), angle),
                Op::Ry { q, angle } => planner.ry(slot(q), angle),
                Op::Rz { q, angle } | Op::VirtualZ { q, angle } => planner.phase(slot(q), C::phase(angle)),
                Op::X90 { q } => planner.rx(slot(q), FRAC_PI_2),
                Op::YMinus90 { q } => planner.ry(slot(q), -FRAC_PI_2),
                Op::Id { .. } => {}
                Op::Cz { a, b } => planner.controlled_phase(slot(a), slot(b), C::MINUS_ONE),
                Op::Iswap { a, b } => planner.iswap(slot(a), slot(b)),
                Op::Cp { a, b, angle } => planner.controlled_phase(slot(a), slot(b), C::phase(angle)),
                Op::Cnot { control, target } => planner.cnot(slot(control), slot(target)),
            }
            while let Some((_, pauli)) = errors.next_if(|(at, _)| *at == index) {
                let (a, b) = qubits(op);
                noise::apply(&mut planner, slot(a), slot(b), *pauli);
            }
        }
        planner.finish()
    }

    fn key(&self, program: ProgramRef<'_>, outcome: u64) -> String {
        let bit = |q: &u16| outcome >> self.outcome_bits[usize::from(*q)] & 1 == 1;
        program.measurements().iter().map(|q| if bit(q) { '1' } else { '0' }).collect()
    }
}

fn sample<R: Rng>(
    mut weights: Vec<f64>,
    register: &Register,
    plan: &Plan,
    shots: u64,
    rng: &mut R,
    tally: &mut Tally,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    // Outcome bit of each bit of the state, `None` for those that no one looks at.
    let mut outcome_of = vec![None; register.size];
    for (slot, bit) in register.measured_bits() {
        outcome_of[plan.place(slot)] = Some(bit);
    }
    for bit in (0..register.size).rev() {
        if outcome_of[bit].is_none() {
            sum_out(&mut weights, bit);
        }
    }
    let outcome_of: Vec<usize> = outcome_of.into_iter().flatten().collect();
    let mut emitted = 0u64;
    multinomial(&weights, shots, rng, &mut |index, count| {
        emitted += 1;
        if emitted.is_multiple_of(WATCH_EVERY) && !watch(0, 0) {
            return Err(cancelled());
        }
        let outcome = outcome_of.iter().enumerate().map(|(i, bit)| ((index >> i & 1) as u64) << bit).sum();
        tally.add(outcome, count)
    })
}

/// Adds up the weights of both values of `bit`, in place.
fn sum_out(weights: &mut Vec<f64>, bit: usize) {
    let half = 1usize << bit;
    for block in 0..weights.len() / (2 * half) {
        for k in 0..half {
            let from = 2 * block * half + k;
            weights[block * half + k] = weights[from] + weights[from + half];
        }
    }
    weights.truncate(weights.len() / 2);
}
