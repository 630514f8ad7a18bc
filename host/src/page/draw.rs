//! Pure: drawings as SVG. Colours and strokes are classes of the style sheet.

pub mod layout;

use std::collections::BTreeSet;

use maud::{Markup, html};

use self::layout::{Point, layout};

/// The qubits of a device and their couplings. `busy` are highlighted.
pub struct DeviceGraph {
    points: Vec<Point>,
    edges: Vec<(u16, u16)>,
}

/// Length of a coupling and radius of a qubit in the drawing's units.
const UNIT: f64 = 40.0;
const RADIUS: f64 = 13.0;
/// So that a drawing grows with the text around it.
const UNITS_PER_EM: f64 = 14.0;

impl DeviceGraph {
    /// Lays the device out. For 200 qubits this takes some milliseconds, so it is kept.
    pub fn new(num_qubits: u16, edges: &[(u16, u16)]) -> DeviceGraph {
        let mut shown: Vec<(u16, u16)> = edges.iter().map(|&(a, b)| (a.min(b), a.max(b))).collect();
        shown.sort_unstable();
        shown.dedup();
        DeviceGraph { points: layout(usize::from(num_qubits), &shown), edges: shown }
    }

    pub fn draw(&self, busy: &BTreeSet<u16>) -> Markup {
        let place = |qubit: u16| {
            let point = self.points.get(usize::from(qubit)).copied().unwrap_or_default();
            (RADIUS + 3.0 + point.0 * UNIT, RADIUS + 3.0 + point.1 * UNIT)
        };
        let largest = |of: fn(&Point) -> f64| self.points.iter().map(of).fold(0.0, f64::max);
        let (width, height) = (largest(|p| p.0), largest(|p| p.1));
        let size = |units: f64| units * UNIT + 2.0 * RADIUS + 6.0;
        let class = |qubit: u16| if busy.contains(&qubit) { "qubit busy" } else { "qubit" };
        let label = format!("{} qubits and {} couplings", self.points.len(), self.edges.len());
        html! {
            svg.graph viewBox={ "0 0 " (number(size(width))) " " (number(size(height))) }
                width={ (number(size(width) / UNITS_PER_EM)) "em" } height={ (number(size(height) / UNITS_PER_EM)) "em" } role="img" aria-label=(label) {
                @for &(a, b) in &self.edges {
                    @let (from, to) = (place(a), place(b));
                    line.coupling x1=(number(from.0)) y1=(number(from.1)) x2=(number(to.0)) y2=(number(to.1)) {}
                }
                @for qubit in 0..self.points.len() as u16 {
                    @let (x, y) = place(qubit);
                    g class=(class(qubit)) {
                        circle cx=(number(x)) cy=(number(y)) r=(number(RADIUS)) {}
                        text x=(number(x)) y=(number(y)) { (qubit) }
                    }
                }
            }
        }
    }
}

/// A line through values, the oldest first; gaps where a value is not finite.
pub fn sparkline(values: &[f32], label: &str, range: Option<(f64, f64)>) -> Markup {
    const WIDTH: f64 = 240.0;
    const HEIGHT: f64 = 36.0;
    const MOST: usize = 120;
    // As many points as can be told apart.
    let group = values.len().div_ceil(MOST).max(1);
    let means: Vec<f64> = values
        .chunks(group)
        .map(|chunk| chunk.iter().map(|v| f64::from(*v)).sum::<f64>() / chunk.len() as f64)
        .collect();
    let finite = || means.iter().copied().filter(|v| v.is_finite());
    let (low, high) = range.unwrap_or((finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max)));
    let (mut path, mut is_down) = (String::new(), false);
    for (place, value) in means.iter().enumerate() {
        if !value.is_finite() {
            is_down = false;
            continue;
        }
        let x = WIDTH * place as f64 / (means.len().max(2) - 1) as f64;
        // A level that does not change runs through the middle.
        let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        let y = 2.0 + (HEIGHT - 4.0) * (1.0 - share);
        path.push_str(&format!("{}{} {}", if is_down { "L" } else { "M" }, number(x), number(y)));
        is_down = true;
    }
    html! {
        svg.spark viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
            path d=(path) {}
        }
    }
}

/// Stacked bars, one for each entry, the oldest first. A bar has one part for each class.
pub fn stacked_bars<const N: usize>(
    bars: &[[u32; N]],
    classes: [&str; N],
    label: &str,
    title: impl Fn(usize) -> String,
) -> Markup {
    const STEP: f64 = 10.0;
    const HEIGHT: f64 = 90.0;
    let sum = |bar: &[u32; N]| bar.iter().map(|n| f64::from(*n)).sum::<f64>();
    let highest = bars.iter().map(sum).fold(1.0, f64::max);
    let part = |bar: &[u32; N], class: usize| {
        let (height, below) =
            (f64::from(bar[class]), bar[..class].iter().map(|n| f64::from(*n)).sum::<f64>());
        let scale = HEIGHT / highest;
        (HEIGHT - (below + height) * scale, height * scale)
    };
    html! {
        svg.bars viewBox={ "0 0 " (STEP * bars.len() as f64) " " (HEIGHT + 1.0) } preserveAspectRatio="none"
            role="img" aria-label=(label) {
            line.axis x1="0" x2=(STEP * bars.len() as f64) y1=(HEIGHT + 0.5) y2=(HEIGHT + 0.5) {}
            @for (place, bar) in bars.iter().enumerate().filter(|(_, bar)| sum(bar) > 0.0) {
                g {
                    title { (title(place)) }
                    @for class in (0..N).filter(|class| bar[*class] > 0) {
                        @let (y, height) = part(bar, class);
                        rect class=(classes[class]) x=(number(place as f64 * STEP + 1.0)) y=(number(y))
                            width=(number(STEP - 2.0)) height=(number(height.max(1.0))) {}
                    }
                }
            }
        }
    }
}

/// A horizontal bar that is filled to a share of 0 to 1.
pub fn level(share: f64, class: &str) -> Markup {
    html! {
        svg.level viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.rest x="0" y="0" width="100" height="8" {}
            rect class=(class) x="0" y="0" width=(number(100.0 * share.clamp(0.0, 1.0))) height="8" {}
        }
    }
}

/// A coordinate with one decimal at most.
fn number(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_qubits_are_marked_and_couplings_are_drawn_once() {
        let graph = DeviceGraph::new(3, &[(0, 1), (1, 0), (1, 2)]);
        let svg = graph.draw(&BTreeSet::from([1])).into_string();
        assert_eq!(svg.matches("<line").count(), 2, "{svg}");
        assert_eq!(svg.matches("qubit busy").count(), 1, "{svg}");
        assert!(svg.contains("3 qubits and 2 couplings"), "{svg}");
    }

    #[test]
    fn a_sparkline_has_gaps_and_stays_inside() {
        let svg = sparkline(&[1.0, f32::NAN, 2.0, 3.0], "t", None).into_string();
        assert_eq!(svg.matches('M').count(), 2, "{svg}");
        for strange in [&[][..], &[f32::NAN], &[1.0], &[5.0, 5.0], &[f32::INFINITY, 1.0]] {
            assert!(!sparkline(strange, "t", None).into_string().contains("NaN"), "{strange:?}");
        }
        let many: Vec<f32> = (0..360u16).map(f32::from).collect();
        assert!(sparkline(&many, "t", None).into_string().matches('L').count() < 120);
    }

    #[test]
    fn bars_are_stacked_within_the_height() {
        let svg =
            stacked_bars(&[[1, 0], [3, 1]], ["a", "b"], "jobs", |n| format!("minute {n}")).into_string();
        assert!(svg.contains(r#"<rect class="b" x="11" y="0" width="8" height="22.5">"#), "{svg}");
        assert!(svg.contains("<title>minute 1</title>"), "{svg}");
        assert!(!stacked_bars(&[], ["a"], "none", |_| String::new()).into_string().contains("NaN"));
    }
}
