//! Pure: where the qubits of a device are drawn, from its couplings alone.
//!
//! A register whose numbers run along rows is drawn as that grid or line, a ring as a ring. Anything else (heavy-hex,
//! other numberings, several components) is laid out so that distances on the page are those on the graph: classical
//! scaling gives the start, stress majorization (Gansner, Koren, North 2004) improves it. It is deterministic: a device
//! looks the same after each start.

use std::collections::{BTreeSet, VecDeque};

/// A position; couplings are about 1 long.
pub type Point = (f64, f64);

/// Longest line or ring that is drawn as such; longer lines are folded.
const MAX_ROW: usize = 12;
const MAX_RING: usize = 40;
/// Least distance of two qubits, and how far a drawing is scaled up for it.
const NEAREST: f64 = 0.8;
const MAX_SCALE: f64 = 8.0;
const SCALING_ROUNDS: usize = 60;
const STRESS_ROUNDS: usize = 80;

/// The positions of `n` qubits, beginning at (0, 0).
pub fn layout(n: usize, edges: &[(u16, u16)]) -> Vec<Point> {
    let edges: BTreeSet<(usize, usize)> = edges
        .iter()
        .map(|&(a, b)| (usize::from(a.min(b)), usize::from(a.max(b))))
        .filter(|&(a, b)| a != b && b < n)
        .collect();
    let is_complete = edges.len() * 2 == n * n.saturating_sub(1);
    let points = match row_width(n, &edges) {
        _ if edges.is_empty() => rows(n, (n as f64).sqrt().ceil() as usize),
        _ if is_complete && n > 2 => ring((0..n).collect()),
        Some(width) if width == n => line(n),
        Some(width) => rows(n, width),
        None => components(n, &edges),
    };
    from_origin(apart(points))
}

/// The width of the grid in whose rows the qubits are numbered.
fn row_width(n: usize, edges: &BTreeSet<(usize, usize)>) -> Option<usize> {
    let width = edges.iter().map(|(a, b)| b - a).filter(|step| *step != 1).min().unwrap_or(n);
    let fits = |&(a, b): &(usize, usize)| b - a == width || (b - a == 1 && b % width != 0);
    edges.iter().all(fits).then_some(width)
}

fn rows(n: usize, width: usize) -> Vec<Point> {
    (0..n).map(|q| ((q % width) as f64, (q / width) as f64)).collect()
}

/// A line, folded into rows of about twice as many as there are rows.
fn line(n: usize) -> Vec<Point> {
    let width = if n <= MAX_ROW { n } else { ((2 * n) as f64).sqrt().ceil() as usize };
    let fold = |q: usize| {
        let (row, place) = (q / width, q % width);
        let x = if row % 2 == 0 { place } else { width - 1 - place };
        (x as f64, row as f64)
    };
    (0..n).map(fold).collect()
}

/// A ring of qubits in this order, each coupling 1 long.
fn ring(order: Vec<usize>) -> Vec<Point> {
    let (n, mut points) = (order.len(), vec![(0.0, 0.0); order.len()]);
    let radius = (0.5 / (std::f64::consts::PI / n as f64).sin()).max(1.0);
    for (place, qubit) in order.into_iter().enumerate() {
        let angle = std::f64::consts::TAU * (place as f64 / n as f64 - 0.25);
        points[qubit] = (radius * angle.cos(), radius * angle.sin());
    }
    points
}

/// Every connected component by itself, side by side, the largest first.
fn components(n: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<Point> {
    let mut neighbours = vec![Vec::new(); n];
    for &(a, b) in edges {
        neighbours[a].push(b);
        neighbours[b].push(a);
    }
    let (mut seen, mut found) = (vec![false; n], Vec::new());
    for start in 0..n {
        if !seen[start] {
            let members: Vec<usize> = distances(start, &neighbours)
                .into_iter()
                .enumerate()
                .filter(|(_, d)| d.is_some())
                .map(|(q, _)| q)
                .collect();
            members.iter().for_each(|q| seen[*q] = true);
            found.push(members);
        }
    }
    found.sort_by_key(|members| std::cmp::Reverse(members.len()));
    let (mut points, mut x) = (vec![(0.0, 0.0); n], 0.0);
    for members in found {
        let placed = from_origin(component(&members, &neighbours));
        let width = placed.iter().map(|p| p.0).fold(0.0, f64::max);
        for (qubit, point) in members.iter().zip(placed) {
            points[*qubit] = (x + point.0, point.1);
        }
        x += width + 1.0;
    }
    points
}

fn component(members: &[usize], neighbours: &[Vec<usize>]) -> Vec<Point> {
    let n = members.len();
    if n <= 2 {
        return rows(n, 2);
    }
    if n <= MAX_RING && members.iter().all(|q| neighbours[*q].len() == 2) {
        let (mut order, mut before) = (vec![members[0]], members[0]);
        while order.len() < n {
            let here = order[order.len() - 1];
            let next = neighbours[here].iter().copied().find(|q| *q != before && !order.contains(q));
            before = here;
            let Some(next) = next else { break };
            order.push(next);
        }
        let place = |q: &usize| members.iter().position(|m| m == q).unwrap_or(0);
        return ring(order.iter().map(place).collect());
    }
    let far: Vec<Vec<f64>> = members
        .iter()
        .map(|q| {
            let all = distances(*q, neighbours);
            members.iter().map(|m| all[*m].unwrap_or(n) as f64).collect()
        })
        .collect();
    let mut points = scaled(&far);
    for _ in 0..STRESS_ROUNDS {
        points = majorized(&points, &far);
    }
    turned(points, members, neighbours)
}

/// How many couplings every qubit is away from one.
fn distances(from: usize, neighbours: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut found = vec![None; neighbours.len()];
    found[from] = Some(0);
    let mut next = VecDeque::from([(from, 0)]);
    while let Some((qubit, distance)) = next.pop_front() {
        for &other in &neighbours[qubit] {
            if found[other].is_none() {
                found[other] = Some(distance + 1);
                next.push_back((other, distance + 1));
            }
        }
    }
    found
}

/// Classical scaling: the two strongest directions of the centred squares of the distances, by power iteration.
fn scaled(far: &[Vec<f64>]) -> Vec<Point> {
    let n = far.len();
    let square: Vec<Vec<f64>> = far.iter().map(|row| row.iter().map(|d| d * d).collect()).collect();
    let means: Vec<f64> = square.iter().map(|row| row.iter().sum::<f64>() / n as f64).collect();
    let mean = means.iter().sum::<f64>() / n as f64;
    let centred = |i: usize, j: usize| -0.5 * (square[i][j] - means[i] - means[j] + mean);
    let mut axes: Vec<Vec<f64>> = Vec::new();
    for axis in 0..2 {
        // A start that is not orthogonal to what is looked for.
        let mut v: Vec<f64> = (0..n).map(|i| ((i * (axis + 1)) as f64 * 0.7 + 0.3).sin()).collect();
        let mut strength = 0.0;
        for _ in 0..SCALING_ROUNDS {
            for known in &axes {
                let along: f64 = known.iter().zip(&v).map(|(a, b)| a * b).sum();
                let size: f64 = known.iter().map(|a| a * a).sum::<f64>().max(1e-12);
                v.iter_mut().zip(known).for_each(|(x, k)| *x -= along / size * k);
            }
            let next: Vec<f64> = (0..n).map(|i| (0..n).map(|j| centred(i, j) * v[j]).sum()).collect();
            strength = next.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            v = next.into_iter().map(|x| x / strength).collect();
        }
        axes.push(v.into_iter().map(|x| x * strength.sqrt()).collect());
    }
    (0..n).map(|i| (axes[0][i], axes[1][i])).collect()
}

/// One round of stress majorization with weights of distance^-2: each qubit goes to where the others want it.
fn majorized(points: &[Point], far: &[Vec<f64>]) -> Vec<Point> {
    let place = |i: usize| {
        let (mut x, mut y, mut weights) = (0.0, 0.0, 0.0);
        for (j, other) in points.iter().enumerate().filter(|(j, _)| *j != i) {
            let (wanted, dx, dy) = (far[i][j], points[i].0 - other.0, points[i].1 - other.1);
            let (weight, length) = (wanted.powi(-2), dx.hypot(dy).max(1e-9));
            x += weight * (other.0 + wanted * dx / length);
            y += weight * (other.1 + wanted * dy / length);
            weights += weight;
        }
        (x / weights, y / weights)
    };
    (0..points.len()).map(place).collect()
}

/// Turned so that couplings run along the page's sides where they are at right angles, and wider than high.
fn turned(points: Vec<Point>, members: &[usize], neighbours: &[Vec<usize>]) -> Vec<Point> {
    let place = |q: usize| members.iter().position(|m| *m == q).unwrap_or(0);
    let (mut re, mut im, mut count) = (0.0, 0.0, 0.0);
    for (i, qubit) in members.iter().enumerate() {
        for other in neighbours[*qubit].iter().map(|q| place(*q)).filter(|j| *j > i) {
            let angle = 4.0 * (points[other].1 - points[i].1).atan2(points[other].0 - points[i].0);
            (re, im, count) = (re + angle.cos(), im + angle.sin(), count + 1.0);
        }
    }
    let is_square = f64::hypot(re, im) / f64::max(count, 1.0) > 0.4;
    let angle = if is_square { im.atan2(re) / 4.0 } else { principal_angle(&points) };
    let turn = |angle: f64| {
        let (sin, cos) = angle.sin_cos();
        points.iter().map(|(x, y)| (x * cos + y * sin, y * cos - x * sin)).collect::<Vec<Point>>()
    };
    let size = |points: &[Point]| {
        let span = |of: fn(&Point) -> f64| {
            let all = points.iter().map(of);
            all.clone().fold(f64::MIN, f64::max) - all.fold(f64::MAX, f64::min)
        };
        (span(|p| p.0), span(|p| p.1))
    };
    let upright = turn(angle);
    let (width, height) = size(&upright);
    if width >= height { upright } else { turn(angle + std::f64::consts::FRAC_PI_2) }
}

/// The angle of the direction in which the points spread most.
fn principal_angle(points: &[Point]) -> f64 {
    let n = points.len() as f64;
    let (mx, my) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let (xx, xy, yy) = points.iter().fold((0.0, 0.0, 0.0), |(xx, xy, yy), (x, y)| {
        (xx + (x - mx).powi(2), xy + (x - mx) * (y - my), yy + (y - my).powi(2))
    });
    0.5 * (2.0 * xy).atan2(xx - yy)
}

/// Scaled up where two qubits would lie on each other: a device whose couplings cross needs more room.
fn apart(points: Vec<Point>) -> Vec<Point> {
    let mut nearest = f64::MAX;
    for (i, a) in points.iter().enumerate() {
        for b in &points[..i] {
            nearest = nearest.min((a.0 - b.0).hypot(a.1 - b.1));
        }
    }
    let scale = (NEAREST / nearest.max(1e-9)).clamp(1.0, MAX_SCALE);
    points.into_iter().map(|(x, y)| (x * scale, y * scale)).collect()
}

fn from_origin(points: Vec<Point>) -> Vec<Point> {
    let least = |of: fn(&Point) -> f64| points.iter().map(of).fold(f64::MAX, f64::min);
    let (x, y) = (least(|p| p.0), least(|p| p.1));
    points.into_iter().map(|p| (p.0 - x, p.1 - y)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(points: &[Point]) -> f64 {
        let mut least = f64::MAX;
        for (i, a) in points.iter().enumerate() {
            for b in &points[..i] {
                least = least.min((a.0 - b.0).hypot(a.1 - b.1));
            }
        }
        least
    }

    /// Rows of `width` qubits that are joined by single qubits at every fourth place, as in a heavy-hexagonal lattice.
    pub fn heavy_hex(rows: u16, width: u16) -> (usize, Vec<(u16, u16)>) {
        let (mut edges, mut next) = (Vec::new(), rows * width);
        for row in 0..rows {
            edges.extend((1..width).map(|x| (row * width + x - 1, row * width + x)));
            if row + 1 < rows {
                let first = if row % 2 == 0 { 0 } else { 2 };
                for x in (first..width).step_by(4) {
                    edges.extend([(row * width + x, next), (next, (row + 1) * width + x)]);
                    next += 1;
                }
            }
        }
        (usize::from(next), edges)
    }

    #[test]
    fn lines_and_grids_are_drawn_as_they_are_numbered() {
        assert_eq!(layout(3, &[(0, 1), (1, 2)]), [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]);
        let folded = layout(20, &(1..20).map(|q| (q - 1, q)).collect::<Vec<_>>());
        for pair in folded.windows(2) {
            assert_eq!((pair[0].0 - pair[1].0).hypot(pair[0].1 - pair[1].1), 1.0);
        }
        let mut edges = Vec::new();
        for q in 0u16..9 {
            edges.extend((q % 3 < 2).then_some((q, q + 1)));
            edges.extend((q < 6).then_some((q + 3, q)));
        }
        assert_eq!(layout(9, &edges)[5], (2.0, 1.0));
        assert_eq!(layout(5, &[]).len(), 5);
        assert_eq!(layout(0, &[]), []);
        assert_eq!(layout(1, &[(0, 9), (0, 0)]), [(0.0, 0.0)]);
    }

    #[test]
    fn a_grid_with_other_numbers_is_found_again() {
        let shuffled = |i: u16| (i * 7 + 3) % 25;
        let mut edges = Vec::new();
        for i in 0..25u16 {
            edges.extend((i % 5 < 4).then(|| (shuffled(i), shuffled(i + 1))));
            edges.extend((i < 20).then(|| (shuffled(i), shuffled(i + 5))));
        }
        let points = layout(25, &edges);
        for (a, b) in &edges {
            let (a, b) = (points[usize::from(*a)], points[usize::from(*b)]);
            let (dx, dy) = ((a.0 - b.0).abs(), (a.1 - b.1).abs());
            assert!(dx.min(dy) < 0.2 && (0.7..1.4).contains(&dx.max(dy)), "{dx} {dy}");
        }
    }

    #[test]
    fn no_two_qubits_lie_on_each_other() {
        for (n, edges) in [
            heavy_hex(7, 15),
            heavy_hex(3, 9),
            (200, (0..200u16).flat_map(|q| [(q, (q + 1) % 200), (q, (q + 17) % 200)]).collect()),
            (7, vec![(0, 1), (1, 2), (2, 0), (3, 4)]),
            (6, (0..6).map(|q| (q, (q + 1) % 6)).collect()),
            (40, (1..40).map(|q| (0, q)).collect()),
            (5, (0..5).flat_map(|a| (0..a).map(move |b| (a, b))).collect()),
        ] {
            let points = layout(n, &edges);
            assert_eq!(points.len(), n);
            assert!(points.iter().all(|p| p.0 >= 0.0 && p.1 >= 0.0 && p.0.is_finite() && p.1.is_finite()));
            let nearest = nearest(&points);
            assert!(nearest > 0.75, "{n}: {nearest}");
        }
    }

    #[test]
    fn heavy_hex_couplings_are_about_equally_long() {
        let (n, edges) = heavy_hex(7, 15);
        let points = layout(n, &edges);
        for (a, b) in edges {
            let (a, b) = (points[usize::from(a)], points[usize::from(b)]);
            let length = (a.0 - b.0).hypot(a.1 - b.1);
            assert!((0.5..1.8).contains(&length), "{length}");
        }
    }
}
