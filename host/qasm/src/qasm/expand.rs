//! Pure: a gate with its modifiers as primitive gates and a phase.
//!
//! The phase is kept because it shows under a control: `ctrl @ gphase(a)` is `p(a)` on the control, and so is the phase
//! of every gate that is controlled. Bounded: a definition can neither nest without end nor blow up, not even without
//! emitting anything.

use super::budget::ExpansionBudget;
use super::gates::{BELL_PAIR, IQFT, Primitive, QFT, TELEPORT};
use super::lexer::SourcePos;
use super::power::power;
use super::program::{Application, Callee, Form, Loop, Modifier, Statement};
use super::selection::{Evaluation, elements, loop_values};
use super::{CircuitError, MAX_OPERATIONS};

/// Deepest nesting of definitions, loops and modifiers together.
const MAX_NESTING: u32 = 200;
const MAX_CONTROLS: i64 = 16;
const MAX_POWER: f64 = 64.0;
const MAX_MODIFIERS: usize = 64;

/// Primitive gates in order, and the phase of their product.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Expansion {
    pub gates: Vec<Primitive>,
    pub phase: f64,
}

/// A modifier with its numbers, one control at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Applied {
    Control { is_negative: bool },
    Inverse,
    Power(f64),
}

/// A call whose numbers are known.
#[derive(Clone, Copy)]
struct Call<'c> {
    callee: &'c Callee,
    pos: SourcePos,
    modifiers: &'c [Applied],
    params: &'c [f64],
}

/// Expands an application on these qubits, which are those of one gate.
///
/// # Errors
/// When the numbers of parameters or qubits are wrong, or the gate expands to too much.
pub(super) fn expand(
    application: &Application,
    qubits: &[u32],
    eval: &mut Evaluation<'_>,
) -> Result<Expansion, CircuitError> {
    let mut out = Expansion::default();
    expand_into(application, qubits, eval, 0, &mut out)?;
    Ok(out)
}

fn expand_into(
    application: &Application,
    qubits: &[u32],
    eval: &mut Evaluation<'_>,
    nesting: u32,
    out: &mut Expansion,
) -> Result<(), CircuitError> {
    let Application { pos, callee, .. } = application;
    let mut seen = 0_u32;
    for qubit in qubits {
        if seen & 1 << qubit != 0 {
            return Err(pos.error(format!("qubit {qubit} is used twice in one gate")));
        }
        seen |= 1 << qubit;
    }
    let mut params = Vec::with_capacity(application.params.len());
    for param in &application.params {
        params.push(param.value(eval.frame, eval.budget)?);
    }
    let modifiers = applied_modifiers(application, qubits.len(), eval)?;
    let call = Call { callee, pos: *pos, modifiers: &modifiers, params: &params };
    call.expand_into(qubits, eval.budget, nesting, out)
}

fn applied_modifiers(
    application: &Application,
    given: usize,
    eval: &mut Evaluation<'_>,
) -> Result<Vec<Applied>, CircuitError> {
    let mut applied = Vec::new();
    for modifier in &application.modifiers {
        match modifier {
            Modifier::Inverse => applied.push(Applied::Inverse),
            Modifier::Control { is_negative, count } => {
                let count = match count {
                    Some(count) => {
                        count.whole(eval.frame, eval.budget, "the number of controls", 1..=MAX_CONTROLS)?
                    }
                    None => 1,
                };
                applied.extend((0..count).map(|_| Applied::Control { is_negative: *is_negative }));
            }
            Modifier::Power(exponent) => {
                let value = exponent.value(eval.frame, eval.budget)?;
                if value.abs() > MAX_POWER {
                    let text = format!("only powers up to {MAX_POWER} are taken here, this is {value}");
                    return Err(exponent.pos().error(text));
                }
                applied.push(Applied::Power(value));
            }
        }
        if applied.len() > MAX_MODIFIERS {
            return Err(application.pos.error("too many modifiers"));
        }
    }
    if application.form == Form::Controlled {
        let Some(own) = application.callee.qubits() else {
            let text = "how many controls 'controlled' means is not clear here: use ctrl @";
            return Err(application.pos.error(text));
        };
        if given <= own {
            let text = format!("'controlled' needs more than {own} qubits here, given are {given}");
            return Err(application.pos.error(text));
        }
        applied.extend((own..given).map(|_| Applied::Control { is_negative: false }));
    }
    Ok(applied)
}

impl Call<'_> {
    fn expand_into(
        &self,
        qubits: &[u32],
        budget: &mut ExpansionBudget,
        nesting: u32,
        out: &mut Expansion,
    ) -> Result<(), CircuitError> {
        budget.expand(1, self.pos)?;
        if out.gates.len() > MAX_OPERATIONS || nesting > MAX_NESTING {
            return Err(self.pos.error("this gate expands to too much"));
        }
        // From the outside in: the first modifier takes the first qubits.
        let Some((modifier, inner)) = self.modifiers.split_first() else {
            return self.plain(qubits, budget, nesting, out);
        };
        let inside = Call { modifiers: inner, ..*self };
        let (begin, phase) = (out.gates.len(), std::mem::take(&mut out.phase));
        match *modifier {
            Applied::Power(exponent) if exponent.fract() != 0.0 => {
                self.fractional_power(exponent, inner, qubits, budget, nesting, out)?;
            }
            Applied::Control { is_negative } => {
                let Some((&control, rest)) = qubits.split_first() else {
                    return Err(self.pos.error("a control needs a qubit"));
                };
                let x = is_negative.then(|| Primitive::new("x", &[], 0, &[control]));
                out.gates.extend(x);
                inside.expand_into(rest, budget, nesting + 1, out)?;
                let first = begin + usize::from(is_negative);
                budget.expand(out.gates.len() - first, self.pos)?;
                add_control(out, first, control);
                out.gates.extend(x);
            }
            Applied::Inverse => {
                inside.expand_into(qubits, budget, nesting + 1, out)?;
                budget.expand(out.gates.len() - begin, self.pos)?;
                invert(out, begin);
            }
            Applied::Power(times) => {
                inside.expand_into(qubits, budget, nesting + 1, out)?;
                // Whole and bounded since it was evaluated.
                let (count, end) = (times.abs() as usize, out.gates.len());
                budget.expand((end - begin).saturating_mul(count), self.pos)?;
                if times < 0.0 {
                    invert(out, begin);
                }
                let end = out.gates.len();
                for _ in 1..count {
                    out.gates.extend_from_within(begin..end);
                }
                if count == 0 {
                    out.gates.truncate(begin);
                }
                out.phase *= count as f64;
            }
        }
        out.phase += phase;
        Ok(())
    }

    fn fractional_power(
        &self,
        exponent: f64,
        inner: &[Applied],
        qubits: &[u32],
        budget: &mut ExpansionBudget,
        nesting: u32,
        out: &mut Expansion,
    ) -> Result<(), CircuitError> {
        let mut modifiers = inner.to_vec();
        // Where a control is 0 the gate does nothing, so the power may go inside.
        if let Some(Applied::Control { .. }) = inner.first() {
            modifiers.insert(1, Applied::Power(exponent));
            return Call { modifiers: &modifiers, ..*self }.expand_into(qubits, budget, nesting + 1, out);
        }
        let is_inverse = |modifier: &Applied| *modifier == Applied::Inverse;
        if let (Callee::Defined(definition), [angle]) = (self.callee, self.params)
            && definition.is_rotation
            && inner.iter().all(is_inverse)
        {
            let sign = if inner.len().is_multiple_of(2) { 1.0 } else { -1.0 };
            let scaled = Call { modifiers: &[], params: &[sign * angle * exponent], ..*self };
            return scaled.expand_into(qubits, budget, nesting + 1, out);
        }
        let mut base = Expansion::default();
        Call { modifiers: inner, ..*self }.expand_into(qubits, budget, nesting + 1, &mut base)?;
        base.gates = base.gates.iter().flat_map(|gate| gate.parts().unwrap_or_else(|| vec![*gate])).collect();
        // Each is multiplied.
        budget.expand(base.gates.len(), self.pos)?;
        let power = power(&base, exponent).ok_or_else(|| {
            self.pos.error(format!(
                "the power {exponent} of this gate is not known: fractional powers are those of gates on one qubit, \
                 with controls or without, of swap, rxx, ryy and rzz"
            ))
        })?;
        budget.expand(power.gates.len(), self.pos)?;
        out.gates.extend(power.gates);
        out.phase += power.phase;
        Ok(())
    }

    fn plain(
        &self,
        qubits: &[u32],
        budget: &mut ExpansionBudget,
        nesting: u32,
        out: &mut Expansion,
    ) -> Result<(), CircuitError> {
        let needed = self.callee.qubits();
        if needed.is_some_and(|needed| needed != qubits.len()) {
            let (name, needed) = (self.name(), needed.unwrap_or_default());
            return Err(self
                .pos
                .error(format!("'{name}' takes {needed} qubits, given are {}", qubits.len())));
        }
        match self.callee {
            Callee::Named(gate) => {
                out.gates.push(Primitive::new(gate.name, self.params, gate.controls, qubits));
                Ok(())
            }
            Callee::Fourier(_) if qubits.is_empty() => {
                Err(self.pos.error(format!("'{}' needs a qubit", self.name())))
            }
            Callee::Fourier(name) => {
                out.gates.push(Primitive::new(name, &[], 0, qubits));
                Ok(())
            }
            Callee::GlobalPhase => {
                out.phase += self.params.first().copied().unwrap_or_default();
                Ok(())
            }
            Callee::Defined(definition) => {
                let mut frame = self.params.to_vec();
                body(&definition.body, &mut frame, qubits, budget, nesting + 1, out)
            }
        }
    }

    fn name(&self) -> &str {
        match self.callee {
            Callee::Named(gate) => gate.name,
            Callee::Fourier(name) => name,
            Callee::GlobalPhase => "gphase",
            Callee::Defined(definition) => crate::model::cut(&definition.name, 40),
        }
    }
}

/// The body of a gate.
fn body(
    statements: &[Statement],
    frame: &mut Vec<f64>,
    qubits: &[u32],
    budget: &mut ExpansionBudget,
    nesting: u32,
    out: &mut Expansion,
) -> Result<(), CircuitError> {
    for statement in statements {
        match statement {
            Statement::Apply(application) => {
                let mut eval = Evaluation { frame, budget };
                let mut on = Vec::with_capacity(application.operands.len());
                for operand in &application.operands {
                    on.extend(elements(operand, qubits, &mut eval)?);
                }
                expand_into(application, &on, &mut eval, nesting, out)?;
            }
            Statement::For(Loop { pos, values, is_whole, body: inner }) => {
                if nesting > MAX_NESTING {
                    return Err(pos.error("loops are nested too deep"));
                }
                for value in loop_values(values, *is_whole, &mut Evaluation { frame, budget })? {
                    budget.expand(1, *pos)?;
                    frame.push(value);
                    body(inner, frame, qubits, budget, nesting + 1, out)?;
                    frame.pop();
                }
            }
            // The reader lets no other statement into a gate.
            Statement::Measure { .. } | Statement::Reset { .. } | Statement::Barrier { .. } => {}
        }
    }
    Ok(())
}

/// Replaces the operations of the public dialect from this gate on by their parts.
fn take_apart(out: &mut Expansion, begin: usize, is_whole: impl Fn(&Primitive) -> bool) {
    if out.gates[begin..].iter().all(&is_whole) {
        return;
    }
    let gates = out.gates.split_off(begin);
    let parts = |gate: Primitive| match is_whole(&gate) {
        true => vec![gate],
        false => gate.parts().unwrap_or_else(|| vec![gate]),
    };
    out.gates.extend(gates.into_iter().flat_map(parts));
}

/// Inverts the gates from this one on, and the phase.
fn invert(out: &mut Expansion, begin: usize) {
    // A Bell pair is no inverse of itself.
    take_apart(out, begin, |gate| gate.name != BELL_PAIR);
    out.gates[begin..].reverse();
    out.gates[begin..].iter_mut().for_each(|gate| *gate = gate.inverse());
    out.phase = -out.phase;
}

/// Controls the gates from this one on, and the phase.
fn add_control(out: &mut Expansion, begin: usize, control: u32) {
    take_apart(out, begin, |gate| !matches!(gate.name, QFT | IQFT | BELL_PAIR | TELEPORT));
    out.gates[begin..].iter_mut().for_each(|gate| *gate = gate.controlled(control));
    let phase = std::mem::take(&mut out.phase);
    if phase != 0.0 {
        out.gates.push(Primitive::new("p", &[phase], 0, &[control]));
    }
}
