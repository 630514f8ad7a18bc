//! Pure: a gate with its modifiers as primitive gates, and how modifiers and parameters are read.
//!
//! Bounded: a definition can neither nest without end nor blow up, not even without emitting anything.

use std::collections::HashMap;
use std::rc::Rc;

use super::expression::{Scopes, Tokens, expression, whole_number};
use super::gates::{NamedGate, Primitive, named_gate};
use super::lexer::{SourcePos, Token};
use super::{CircuitError, MAX_OPERATIONS};

/// Deepest nesting of gate definitions.
const MAX_NESTING: u32 = 32;
/// Steps of expansion.
const MAX_STEPS: usize = 200_000;
/// Tokens of definitions that are read, over all calls: a body is read again by each call of its gate, so a short source
/// could take time quadratic in its length.
const MAX_TOKENS_READ: usize = 2_000_000;
const MAX_CONTROLS: u32 = 16;
const MAX_POWER: u32 = 64;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Modifier {
    Control,
    NegativeControl,
    Inverse,
    Power(u32),
}

/// A call of a gate, with its qubits.
pub(super) struct Call<'c> {
    pub name: &'c str,
    pub pos: SourcePos,
    pub modifiers: &'c [Modifier],
    pub params: &'c [f64],
}

/// A gate that a source defines.
pub(super) struct Definition {
    pub params: Vec<String>,
    pub qubits: Vec<String>,
    /// Index of the source that has the definition's tokens.
    pub source: usize,
    pub body: usize,
}

/// Expands calls to primitive gates, by the definitions and constants that were read so far.
pub(super) struct Expander<'a> {
    /// The source, and the built-in definitions.
    sources: [&'a [(Token, SourcePos)]; 2],
    pub constants: HashMap<String, f64>,
    pub gates: HashMap<String, Rc<Definition>>,
    /// Calls that were expanded, over the whole circuit.
    steps: usize,
    /// Tokens of definitions that were read, over the whole circuit.
    tokens_read: usize,
}

impl<'a> Expander<'a> {
    pub fn new(sources: [&'a [(Token, SourcePos)]; 2]) -> Expander<'a> {
        Expander { sources, constants: HashMap::new(), gates: HashMap::new(), steps: 0, tokens_read: 0 }
    }

    /// A call as primitive gates.
    pub(super) fn expand(
        &mut self,
        call: &Call<'_>,
        qubits: &[u32],
        nesting: u32,
        out: &mut Vec<Primitive>,
    ) -> Result<(), CircuitError> {
        let pos = call.pos;
        self.steps += 1;
        if self.steps > MAX_STEPS || out.len() > MAX_OPERATIONS || nesting > MAX_NESTING {
            return Err(pos.error("this gate expands to too much"));
        }
        let mut sorted = qubits.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err(pos.error(format!("qubit {} is used twice in one gate", twice[0])));
        }
        // From the outside in: the first modifier takes the first qubits.
        let Some((modifier, inner)) = call.modifiers.split_first() else {
            return self.plain(call, qubits, nesting, out);
        };
        let inside = Call { modifiers: inner, ..*call };
        let mut gates = Vec::new();
        match modifier {
            Modifier::Inverse => {
                self.expand(&inside, qubits, nesting, &mut gates)?;
                out.extend(gates.into_iter().rev().map(Primitive::inverse));
            }
            Modifier::Power(times) => {
                self.expand(&inside, qubits, nesting, &mut gates)?;
                if gates.len().saturating_mul(*times as usize) > MAX_OPERATIONS {
                    return Err(pos.error("this power expands to too much"));
                }
                (0..*times).for_each(|_| out.extend(gates.iter().cloned()));
            }
            Modifier::Control | Modifier::NegativeControl => {
                let Some((&control, rest)) = qubits.split_first() else {
                    return Err(pos.error("a control needs a qubit"));
                };
                self.expand(&inside, rest, nesting, &mut gates)?;
                let x = || Primitive { name: "x", params: Vec::new(), controls: 0, qubits: vec![control] };
                let negative = *modifier == Modifier::NegativeControl;
                out.extend(negative.then(x));
                out.extend(gates.into_iter().map(|mut gate| {
                    gate.controls += 1;
                    gate.qubits.insert(0, control);
                    gate
                }));
                out.extend(negative.then(x));
            }
        }
        Ok(())
    }

    fn plain(
        &mut self,
        call: &Call<'_>,
        qubits: &[u32],
        nesting: u32,
        out: &mut Vec<Primitive>,
    ) -> Result<(), CircuitError> {
        let (name, pos, params) = (call.name, call.pos, call.params);
        let counts = |p: usize, q: usize| {
            if params.len() != p {
                return Err(pos.error(format!("'{name}' takes {p} parameters, given are {}", params.len())));
            }
            match qubits.len() == q {
                true => Ok(()),
                false => Err(pos.error(format!("'{name}' takes {q} qubits, given are {}", qubits.len()))),
            }
        };
        let own = self.gates.get(name).filter(|d| d.source == 0);
        let built_in = if own.is_none() { named_gate(name) } else { None };
        if let Some(NamedGate { name, params: p, controls, targets }) = built_in {
            counts(p, controls + targets)?;
            out.push(Primitive { name, params: params.to_vec(), controls, qubits: qubits.to_vec() });
            return Ok(());
        }
        let Some(definition) = self.gates.get(name).cloned() else {
            return Err(pos.error(format!("the gate '{}' is not known", crate::model::cut(name, 40))));
        };
        counts(definition.params.len(), definition.qubits.len())?;
        let mut t = Tokens::new(self.sources[definition.source]);
        t.go_to(definition.body);
        let mut read = t.at();
        while !t.eat("}") {
            self.tokens_read += t.at() - read;
            read = t.at();
            if self.tokens_read > MAX_TOKENS_READ {
                return Err(pos.error("this gate expands to too much"));
            }
            let modifiers = modifiers(&mut t, &self.constants)?;
            let inner_pos = t.pos();
            let inner = t.word("a gate")?;
            if inner == "barrier" {
                while !t.eat(";") {
                    if matches!(t.next(), Token::End) {
                        return Err(inner_pos.error("expected ';'"));
                    }
                }
                continue;
            }
            let scopes = Scopes::of_gate(&definition.params, params, &self.constants);
            let given = if t.eat("(") { self::params(&mut t, scopes)? } else { Vec::new() };
            if inner == "gphase" && modifiers.is_empty() && nesting == 0 && t.eat(";") {
                continue;
            }
            let mut on = Vec::new();
            loop {
                let at = t.pos();
                let qubit = t.word("a qubit of the gate")?;
                let place = definition.qubits.iter().position(|own| own == qubit);
                on.push(place.and_then(|place| qubits.get(place).copied()).ok_or_else(|| {
                    at.error(format!(
                        "'{}' is not a qubit of the gate '{name}'",
                        crate::model::cut(qubit, 40)
                    ))
                })?);
                if !t.eat(",") {
                    break;
                }
            }
            t.expect(";")?;
            let call = Call { name: inner, pos: inner_pos, modifiers: &modifiers, params: &given };
            self.expand(&call, &on, nesting + 1, out)?;
        }
        self.tokens_read += t.at() - read;
        Ok(())
    }
}

/// Behind the opening bracket, up to the closing one.
pub(super) fn params(t: &mut Tokens<'_>, scopes: Scopes<'_>) -> Result<Vec<f64>, CircuitError> {
    let mut found = Vec::new();
    while !t.eat(")") {
        if !found.is_empty() {
            t.expect(",")?;
        }
        if found.len() >= 64 {
            return Err(t.pos().error("more than 64 parameters"));
        }
        found.push(expression(t, scopes)?);
    }
    Ok(found)
}

pub(super) fn modifiers(
    t: &mut Tokens<'_>,
    constants: &HashMap<String, f64>,
) -> Result<Vec<Modifier>, CircuitError> {
    let mut found = Vec::new();
    loop {
        let pos = t.pos();
        let Token::Word(word) = t.peek() else { return Ok(found) };
        let is_modifier = matches!(t.peek_second(), Token::Mark("@" | "("));
        match word.as_str() {
            "ctrl" | "negctrl" if is_modifier => {
                t.next();
                let times = match t.eat("(") {
                    true => {
                        let times = whole_number(
                            t,
                            Scopes::of_constants(constants),
                            "the number of controls",
                            MAX_CONTROLS,
                        )?;
                        t.expect(")")?;
                        times
                    }
                    false => 1,
                };
                let kind = if word == "ctrl" { Modifier::Control } else { Modifier::NegativeControl };
                found.extend((0..times).map(|_| kind));
            }
            "inv" if is_modifier => {
                t.next();
                found.push(Modifier::Inverse);
            }
            "pow" if is_modifier => {
                t.next();
                t.expect("(")?;
                let at = t.pos();
                let times = expression(t, Scopes::of_constants(constants))?;
                t.expect(")")?;
                if times.fract() != 0.0 || times.abs() > f64::from(MAX_POWER) {
                    return Err(at.error(format!("only whole powers up to {MAX_POWER} are taken here")));
                }
                if times < 0.0 {
                    found.push(Modifier::Inverse);
                }
                // In range by the check above.
                found.push(Modifier::Power(times.abs() as u32));
            }
            _ => return Ok(found),
        }
        t.expect("@")?;
        if found.len() > 64 {
            return Err(pos.error("too many modifiers"));
        }
    }
}
