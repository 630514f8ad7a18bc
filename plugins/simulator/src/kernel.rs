//! The statevector and the passes of a [`Plan`] over it.
//!
//! Contract: one thread; real and imaginary parts lie apart so that the inner loops vectorise on any CPU;
//! the state's length is not kept at 1 (see [`Rotation`]), readers normalise. Work is done in pieces that
//! fit the cache: qubits below [`BLOCK_BITS`] inside contiguous blocks, higher ones in tiles gathered into a
//! buffer. `watch` is asked between pieces whether to stop.

use std::collections::TryReserveError;

use crate::fuse::{C, Plan, Rotation, Stage};

/// A block of 2^12 amplitudes is 64 KiB, which leaves room for the diagonal's table in a 512 KiB cache.
const BLOCK_BITS: usize = 12;
/// A tile is 2^LANE_BITS contiguous amplitudes for each setting of up to TILE_HIGH high qubits.
const LANE_BITS: usize = 6;
const TILE_HIGH: usize = 6;
/// Amplitudes are scaled down before their squares could overflow (at 2^512).
const MAX_GROWTH_BITS: f64 = 300.0;
/// Amplitudes worked on between two looks at `watch`; about a millisecond.
const WATCH_EVERY: usize = 1 << 20;

/// The run was asked to stop.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped;

/// Bytes that the state of so many qubits takes; saturates.
pub fn bytes_needed(num_qubits: usize) -> u64 {
    u32::try_from(num_qubits).ok().and_then(|n| 16u64.checked_shl(n)).filter(|b| *b != 0).unwrap_or(u64::MAX)
}

/// 2^n amplitudes; bit `q` of an index is the value of qubit `q`.
#[derive(Debug)]
pub struct State {
    re: Vec<f64>,
    im: Vec<f64>,
    growth_bits: f64,
}

impl State {
    /// |0...0>.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn zero(num_qubits: usize) -> Result<State, TryReserveError> {
        let len = 1usize << num_qubits;
        let (mut re, mut im) = (Vec::new(), Vec::new());
        re.try_reserve_exact(len)?;
        im.try_reserve_exact(len)?;
        re.resize(len, 0.0);
        im.resize(len, 0.0);
        re[0] = 1.0;
        Ok(State { re, im, growth_bits: 0.0 })
    }

    /// Executes the plan. `watch(done, total)` is told the stages finished and returns whether to go on.
    ///
    /// # Errors
    /// [`Stopped`] when `watch` says so.
    pub fn run(&mut self, plan: &Plan, watch: &mut dyn FnMut(usize, usize) -> bool) -> Result<(), Stopped> {
        let total = plan.stages.len();
        for (done, stage) in plan.stages.iter().enumerate() {
            let mut budget = Budget { left: 0, watch: &mut || watch(done, total) };
            self.stage(stage, &mut budget)?;
        }
        Ok(())
    }

    fn stage(&mut self, stage: &Stage, budget: &mut Budget<'_>) -> Result<(), Stopped> {
        let (mut high, low): (Vec<(usize, Rotation)>, Vec<_>) =
            stage.rotations.iter().copied().partition(|(bit, _)| *bit >= BLOCK_BITS);
        high.sort_by_key(|(bit, _)| *bit);
        for group in high.chunks(TILE_HIGH) {
            self.tiles(group, budget)?;
        }
        self.blocks(&low, &Diagonal::new(stage), budget)?;
        self.growth_bits += stage.rotations.iter().map(|(_, r)| r.growth_bits()).sum::<f64>();
        if self.growth_bits > MAX_GROWTH_BITS {
            let factor = f64::powi(2.0, -(self.growth_bits as i32));
            for x in self.re.iter_mut().chain(&mut self.im) {
                *x *= factor;
            }
            self.growth_bits = 0.0;
        }
        Ok(())
    }

    /// Rotations of low qubits and the diagonals, block by block.
    fn blocks(
        &mut self,
        low: &[(usize, Rotation)],
        diagonal: &Diagonal,
        budget: &mut Budget<'_>,
    ) -> Result<(), Stopped> {
        if low.is_empty() && diagonal.is_identity() {
            return Ok(());
        }
        let block = self.re.len().min(1 << BLOCK_BITS);
        let mut table = Table::new(block, diagonal);
        let pieces = self.re.chunks_exact_mut(block).zip(self.im.chunks_exact_mut(block));
        for (number, (re, im)) in pieces.enumerate() {
            budget.spend(block * (low.len() + 1))?;
            for (bit, rotation) in low {
                rotate(re, im, *bit, *rotation);
            }
            table.apply(diagonal, number, re, im);
        }
        Ok(())
    }

    /// Rotations of high qubits: their partners lie far apart, at distances that collide in the cache, so a
    /// tile of them is copied together, worked on as a small state of its own, and copied back.
    fn tiles(&mut self, group: &[(usize, Rotation)], budget: &mut Budget<'_>) -> Result<(), Stopped> {
        let lanes = 1usize << LANE_BITS;
        let bits: Vec<usize> = group.iter().map(|(bit, _)| *bit).collect();
        let rows = 1usize << bits.len();
        // Offset of each setting of the group's bits.
        let offsets: Vec<usize> = (0..rows)
            .map(|row| bits.iter().enumerate().map(|(i, bit)| (row >> i & 1) << bit).sum())
            .collect();
        let mask: usize = bits.iter().map(|bit| 1usize << bit).sum();
        let (mut re, mut im) = (vec![0.0; rows * lanes], vec![0.0; rows * lanes]);
        let mut base = 0;
        while base < self.re.len() {
            budget.spend(rows * lanes * group.len())?;
            for (row, offset) in offsets.iter().enumerate() {
                let (from, to) = (base + offset, row * lanes);
                re[to..to + lanes].copy_from_slice(&self.re[from..from + lanes]);
                im[to..to + lanes].copy_from_slice(&self.im[from..from + lanes]);
            }
            for (i, (_, rotation)) in group.iter().enumerate() {
                rotate(&mut re, &mut im, LANE_BITS + i, *rotation);
            }
            for (row, offset) in offsets.iter().enumerate() {
                let (to, from) = (base + offset, row * lanes);
                self.re[to..to + lanes].copy_from_slice(&re[from..from + lanes]);
                self.im[to..to + lanes].copy_from_slice(&im[from..from + lanes]);
            }
            // The next index whose group bits are all 0: carries run through the masked bits.
            base = ((base | mask) + lanes) & !mask;
        }
        Ok(())
    }

    /// Squares of the amplitudes, not normalised. Frees half of the memory.
    pub fn into_weights(self) -> Vec<f64> {
        let State { mut re, im, .. } = self;
        for (r, i) in re.iter_mut().zip(&im) {
            *r = *r * *r + *i * *i;
        }
        re
    }
}

struct Budget<'a> {
    left: usize,
    watch: &'a mut dyn FnMut() -> bool,
}

impl Budget<'_> {
    fn spend(&mut self, amplitudes: usize) -> Result<(), Stopped> {
        if self.left < amplitudes {
            if !(self.watch)() {
                return Err(Stopped);
            }
            self.left = WATCH_EVERY;
        }
        self.left = self.left.saturating_sub(amplitudes);
        Ok(())
    }
}

fn rotate(re: &mut [f64], im: &mut [f64], bit: usize, rotation: Rotation) {
    match rotation {
        Rotation::XSmall(t) => {
            pass(re, im, bit, |r0, i0, r1, i1| (r0 + t * i1, i0 - t * r1, r1 + t * i0, i1 - t * r0));
        }
        Rotation::XLarge(k) => {
            pass(re, im, bit, |r0, i0, r1, i1| (k * r0 + i1, k * i0 - r1, k * r1 + i0, k * i1 - r0));
        }
        Rotation::YSmall(t) => {
            pass(re, im, bit, |r0, i0, r1, i1| (r0 - t * r1, i0 - t * i1, r1 + t * r0, i1 + t * i0));
        }
        Rotation::YLarge(k) => {
            pass(re, im, bit, |r0, i0, r1, i1| (k * r0 - r1, k * i0 - i1, r0 + k * r1, i0 + k * i1));
        }
    }
}

/// Applies `f(r0, i0, r1, i1)` to every pair of amplitudes that differ in `bit`.
#[inline(always)]
fn pass<F>(re: &mut [f64], im: &mut [f64], bit: usize, f: F)
where
    F: Fn(f64, f64, f64, f64) -> (f64, f64, f64, f64),
{
    match bit {
        0 => near::<1, F>(re, im, f),
        1 => near::<2, F>(re, im, f),
        2 => near::<4, F>(re, im, f),
        _ => {
            let distance = 1 << bit;
            for (re, im) in re.chunks_exact_mut(2 * distance).zip(im.chunks_exact_mut(2 * distance)) {
                let (re0, re1) = re.split_at_mut(distance);
                let (im0, im1) = im.split_at_mut(distance);
                for (((r0, r1), i0), i1) in re0.iter_mut().zip(re1).zip(im0).zip(im1) {
                    (*r0, *i0, *r1, *i1) = f(*r0, *i0, *r1, *i1);
                }
            }
        }
    }
}

/// [`pass`] for partners so near that the inner loop must be unrolled to vectorise.
#[inline(always)]
fn near<const DISTANCE: usize, F>(re: &mut [f64], im: &mut [f64], f: F)
where
    F: Fn(f64, f64, f64, f64) -> (f64, f64, f64, f64),
{
    for (re, im) in re.chunks_exact_mut(2 * DISTANCE).zip(im.chunks_exact_mut(2 * DISTANCE)) {
        for k in 0..DISTANCE {
            let j = k + DISTANCE;
            (re[k], im[k], re[j], im[j]) = f(re[k], im[k], re[j], im[j]);
        }
    }
}

/// A stage's diagonals, sorted by where their bits lie.
struct Diagonal {
    low_one: Vec<(usize, C)>,
    low_two: Vec<(usize, usize, C)>,
    /// Bits count from the block's number.
    high_one: Vec<(usize, C)>,
    high_two: Vec<(usize, usize, C)>,
    /// A low bit and a bit of the block's number.
    cross: Vec<(usize, usize, C)>,
}

impl Diagonal {
    fn new(stage: &Stage) -> Diagonal {
        let is_low = |bit: usize| bit < BLOCK_BITS;
        let mut d = Diagonal {
            low_one: Vec::new(),
            low_two: Vec::new(),
            high_one: Vec::new(),
            high_two: Vec::new(),
            cross: Vec::new(),
        };
        for &(bit, phase) in &stage.one {
            if is_low(bit) {
                d.low_one.push((bit, phase));
            } else {
                d.high_one.push((bit - BLOCK_BITS, phase));
            }
        }
        for &(a, b, phase) in &stage.two {
            match (is_low(a), is_low(b)) {
                (true, true) => d.low_two.push((a, b, phase)),
                (true, false) => d.cross.push((a, b - BLOCK_BITS, phase)),
                _ => d.high_two.push((a - BLOCK_BITS, b - BLOCK_BITS, phase)),
            }
        }
        d
    }

    fn is_identity(&self) -> bool {
        self.low_one.is_empty()
            && self.low_two.is_empty()
            && self.high_one.is_empty()
            && self.high_two.is_empty()
            && self.cross.is_empty()
    }
}

/// The diagonals as factors of the amplitudes of a block.
struct Table {
    /// What is the same for all blocks.
    re: Vec<f64>,
    im: Vec<f64>,
    /// Phases that the current block's number puts on single low bits.
    cross: [C; BLOCK_BITS],
    /// The product of all of it, for the current block.
    block_re: Vec<f64>,
    block_im: Vec<f64>,
    /// All factors are 1 or -1.
    real: bool,
    /// There are none at all below the block's number.
    low: bool,
}

impl Table {
    fn new(block: usize, diagonal: &Diagonal) -> Table {
        let mut t = Table {
            re: vec![1.0; block],
            im: vec![0.0; block],
            cross: [C::ONE; BLOCK_BITS],
            block_re: vec![1.0; block],
            block_im: vec![0.0; block],
            real: false,
            low: !(diagonal.low_one.is_empty() && diagonal.low_two.is_empty()),
        };
        for &(bit, phase) in &diagonal.low_one {
            multiply_where(&mut t.re, &mut t.im, 1 << bit, phase);
        }
        for &(a, b, phase) in &diagonal.low_two {
            multiply_where(&mut t.re, &mut t.im, 1 << a | 1 << b, phase);
        }
        let all = diagonal.high_one.iter().chain(&diagonal.low_one).map(|(_, p)| p);
        let two = diagonal.low_two.iter().chain(&diagonal.high_two).chain(&diagonal.cross).map(|(_, _, p)| p);
        t.real = all.chain(two).all(|p| p.im == 0.0);
        t
    }

    fn apply(&mut self, diagonal: &Diagonal, number: usize, re: &mut [f64], im: &mut [f64]) {
        let set = |bit: &usize| number >> bit & 1 == 1;
        let mut common = C::ONE;
        for (_, phase) in diagonal.high_one.iter().filter(|(bit, _)| set(bit)) {
            common = common * *phase;
        }
        for (_, _, phase) in diagonal.high_two.iter().filter(|(a, b, _)| set(a) && set(b)) {
            common = common * *phase;
        }
        self.cross.fill(C::ONE);
        let mut crossing = false;
        for (low, _, phase) in diagonal.cross.iter().filter(|(_, high, _)| set(high)) {
            self.cross[*low] = self.cross[*low] * *phase;
            crossing = true;
        }
        if !crossing && !self.low {
            if common != C::ONE {
                scale(re, im, common);
            }
            return;
        }
        let (mut factor_re, mut factor_im) = (&self.re, &self.im);
        if crossing || common != C::ONE {
            self.expand(common);
            (factor_re, factor_im) = (&self.block_re, &self.block_im);
        }
        if self.real {
            for ((r, i), f) in re.iter_mut().zip(im).zip(factor_re) {
                *r *= f;
                *i *= f;
            }
        } else {
            for (((r, i), fr), fi) in re.iter_mut().zip(im).zip(factor_re).zip(factor_im) {
                (*r, *i) = (*r * fr - *i * fi, *r * fi + *i * fr);
            }
        }
    }

    /// Fills the block's factors: each bit doubles what the lower ones made.
    fn expand(&mut self, common: C) {
        let len = self.re.len();
        let (re, im) = (&mut self.block_re, &mut self.block_im);
        (re[0], im[0]) = (common.re, common.im);
        let mut done = 1;
        for phase in &self.cross {
            if done == len {
                break;
            }
            let (from_re, to_re) = re.split_at_mut(done);
            let (from_im, to_im) = im.split_at_mut(done);
            for (((fr, fi), tr), ti) in from_re.iter().zip(from_im.iter()).zip(to_re).zip(to_im) {
                (*tr, *ti) = (fr * phase.re - fi * phase.im, fr * phase.im + fi * phase.re);
            }
            done *= 2;
        }
        if self.real {
            for (r, f) in re.iter_mut().zip(&self.re) {
                *r *= f;
            }
        } else {
            for (((r, i), fr), fi) in re.iter_mut().zip(im).zip(&self.re).zip(&self.im) {
                (*r, *i) = (*r * fr - *i * fi, *r * fi + *i * fr);
            }
        }
    }
}

fn scale(re: &mut [f64], im: &mut [f64], by: C) {
    for (r, i) in re.iter_mut().zip(im) {
        (*r, *i) = (*r * by.re - *i * by.im, *r * by.im + *i * by.re);
    }
}

/// Multiplies the values whose index has all bits of `mask`.
fn multiply_where(re: &mut [f64], im: &mut [f64], mask: usize, phase: C) {
    for (index, (r, i)) in re.iter_mut().zip(im).enumerate() {
        if index & mask == mask {
            (*r, *i) = (*r * phase.re - *i * phase.im, *r * phase.im + *i * phase.re);
        }
    }
}
