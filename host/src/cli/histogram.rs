//! Renders counts as a histogram for a terminal.

/// How many rows are shown.
const ROWS: usize = 16;
const BAR: usize = 40;

/// Renders one line for each bit string, the most frequent first, and sums the rest up.
pub fn render(counts: &[(String, i64)]) -> String {
    let mut sorted: Vec<&(String, i64)> = counts.iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let total: i64 = sorted.iter().map(|(_, n)| n).sum();
    let most = sorted.first().map_or(1, |(_, n)| (*n).max(1));
    let mut out = String::new();
    for (key, count) in sorted.iter().take(ROWS) {
        let width = (*count as f64 / most as f64 * BAR as f64).round() as usize;
        let share = 100.0 * *count as f64 / total.max(1) as f64;
        let shown = if key.is_empty() { "(nothing measured)" } else { key };
        out += &format!("  {shown}  {:<BAR$} {count:>8}  {share:5.1} %\n", "█".repeat(width));
    }
    if sorted.len() > ROWS {
        let rest: i64 = sorted[ROWS..].iter().map(|(_, n)| n).sum();
        out += &format!("  ... {} more with {rest} shots\n", sorted.len() - ROWS);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_comes_first_and_long_lists_are_summed_up() {
        let text = render(&[("00".into(), 1), ("11".into(), 3)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("  11  ████") && lines[0].contains("75.0 %"), "{text}");
        assert!(lines[1].starts_with("  00  ██"));
        let many: Vec<(String, i64)> = (0..20).map(|i| (format!("{i:05b}"), 1)).collect();
        assert!(render(&many).ends_with("... 4 more with 4 shots\n"));
        assert!(render(&[(String::new(), 5)]).contains("(nothing measured)"));
    }
}
