//! Pure: statements as they were read: names are resolved, and what is not constant is an expression that is evaluated
//! when its loop or gate is expanded.

use std::rc::Rc;

use super::expression::Expression;
use super::gates::NamedGate;
use super::lexer::SourcePos;

/// What is done in a loop or at the end of a declaration.
#[derive(Debug)]
pub(super) enum Statement {
    Apply(Application),
    For(Loop),
    Measure { pos: SourcePos, qubits: Operand, bits: Option<Operand> },
    Reset { pos: SourcePos, qubits: Operand },
    Barrier { pos: SourcePos, qubits: Vec<Operand> },
}

/// A gate with its modifiers on operands.
#[derive(Debug)]
pub(super) struct Application {
    pub pos: SourcePos,
    /// From the outside in.
    pub modifiers: Vec<Modifier>,
    pub callee: Callee,
    pub params: Vec<Expression>,
    pub operands: Vec<Operand>,
    pub form: Form,
}

/// How operands become the qubits of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One gate for each element of the registers.
    Broadcast,
    /// One gate on all qubits together.
    Joined,
    /// `controlled g`: one gate on all qubits together; those that `g` doesn't need are controls, and stand first.
    Controlled,
}

#[derive(Debug)]
pub(super) enum Modifier {
    /// So many controls; without an expression one.
    Control {
        is_negative: bool,
        count: Option<Expression>,
    },
    Inverse,
    Power(Expression),
}

/// What is called.
#[derive(Debug, Clone)]
pub(super) enum Callee {
    Named(NamedGate),
    /// `qft` or `iqft`, on any number of qubits.
    Fourier(&'static str),
    GlobalPhase,
    Defined(Rc<Definition>),
}

impl Callee {
    /// How many qubits it takes without modifiers; none for any number.
    pub fn qubits(&self) -> Option<usize> {
        match self {
            Callee::Named(gate) => Some(gate.controls + gate.targets),
            Callee::Fourier(_) => None,
            Callee::GlobalPhase => Some(0),
            Callee::Defined(definition) => Some(definition.qubits),
        }
    }

    pub fn params(&self) -> usize {
        match self {
            Callee::Named(gate) => gate.params,
            Callee::Fourier(_) => 0,
            Callee::GlobalPhase => 1,
            Callee::Defined(definition) => definition.params,
        }
    }
}

/// A gate that is defined by others. Its parameters are the first values of its frame.
#[derive(Debug)]
pub(super) struct Definition {
    pub name: String,
    pub params: usize,
    pub qubits: usize,
    pub body: Vec<Statement>,
    /// The source defines it, and not the prelude.
    pub is_own: bool,
    /// A built-in rotation: its power is that of its angle.
    pub is_rotation: bool,
}

/// A static loop. Its variable is the last value of the frame.
#[derive(Debug)]
pub(super) struct Loop {
    pub pos: SourcePos,
    pub values: LoopValues,
    /// Values must be whole.
    pub is_whole: bool,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub(super) enum LoopValues {
    Range(Range),
    Set(Vec<Expression>),
}

/// `first:last` or `first:step:last`, both ends included.
#[derive(Debug)]
pub(super) struct Range {
    pub pos: SourcePos,
    pub first: Option<Expression>,
    pub step: Option<Expression>,
    pub last: Option<Expression>,
}

/// Qubits or bits.
#[derive(Debug)]
pub(super) enum Operand {
    /// A register or alias, of which indexes select elements, one after the other.
    Elements { pos: SourcePos, name: Rc<str>, elements: Rc<[u32]>, indexes: Vec<Index> },
    /// A qubit of the gate whose body this is in.
    OfGate(usize),
}

#[derive(Debug)]
pub(super) enum Index {
    One(Expression),
    Range(Range),
    Set { pos: SourcePos, members: Vec<Expression> },
}
