//! The last hour: how many jobs ended and how, how long their steps took, how much of the time the hardware worked.

use maud::{Markup, html};
use time::OffsetDateTime;
use time::macros::format_description;

use super::HostModel;
use crate::activity::minutes::{JobEnd, KEPT, Minute, Times};
use crate::page::draw::{level, sparkline, stacked_bars};
use crate::page::shell::Section;
use crate::page::text::{count, seconds, value};

pub fn section(model: &HostModel) -> Section {
    let minutes = &model.activity.minutes;
    let ends = minutes.ends();
    let total = |end: JobEnd| ends.iter().map(|minute| u64::from(minute[end as usize])).sum::<u64>();
    let all: u64 = JobEnd::ALL.into_iter().map(total).sum();
    let classes = JobEnd::ALL.map(JobEnd::name);
    let title = |place: usize| {
        let parts = JobEnd::ALL.into_iter().filter(|end| ends[place][*end as usize] > 0);
        let parts: Vec<String> =
            parts.map(|end| format!("{} {}", ends[place][end as usize], end.name())).collect();
        format!("{}: {}", minute_name(model.now, place), parts.join(", "))
    };
    let content = html! {
        figure {
            figcaption { "Jobs per minute" span.quiet { " · " (count(all)) " in the last hour" } }
            (stacked_bars(&ends, classes, &format!("Jobs per minute of the last hour, {all} in all"), title))
            div.axis-labels.quiet aria-hidden="true" { span { "1 h ago" } span { "now" } }
        }
        ul.legend {
            @for end in JobEnd::ALL { li { span class={ "swatch " (end.name()) } aria-hidden="true" {} (end.name()) " " strong { (count(total(end))) } } }
        }
        div.table tabindex="0" role="region" aria-label="Times of the last hour" {
            table {
                thead { tr { th scope="col" { "Time" } th.number scope="col" { "p50" } th.number scope="col" { "p99" } } }
                tbody {
                    (times("Waiting for a slot", &minutes.times(|m: &Minute| &m.wait)))
                    (times("Running", &minutes.times(|m: &Minute| &m.run)))
                    (times("Webhook", &minutes.times(|m: &Minute| &m.webhook)))
                }
            }
        }
        h3 { "Hardware at work" }
        @if model.activity.samples.slots.is_empty() { p.quiet { "No sample yet." } }
        ul.slots {
            @for (slot, series) in model.activity.samples.slots.iter().enumerate() {
                @let share = series.mean().unwrap_or(0.0);
                @let values: Vec<f32> = series.values().collect();
                li {
                    span.slot { "Slot " (slot) }
                    (level(share, "filled"))
                    strong.number { (format!("{:.0} %", share * 100.0)) }
                    (sparkline(&values, &format!("Slot {slot}, the share of the time in which it worked"), Some((0.0, 1.0))))
                }
            }
        }
    };
    Section::new("hour", "The last hour", "tall", content)
}

fn times(name: &str, times: &Times) -> Markup {
    let shown = |share: f64| times.quantile(share).map_or_else(|| "-".into(), seconds);
    html! { tr { th scope="row" { (name) } td.number { (shown(0.5)) } td.number { (shown(0.99)) } } }
}

fn minute_name(now: OffsetDateTime, place: usize) -> String {
    let at = now - time::Duration::minutes((KEPT - 1 - place) as i64);
    at.format(format_description!("[hour]:[minute] UTC")).unwrap_or_default()
}

/// The plugin's gauges; without any there is no section.
pub fn gauges(model: &HostModel) -> Option<Section> {
    let gauges = &model.activity.samples.gauges;
    if gauges.is_empty() {
        return None;
    }
    let content = html! {
        ul.gauges {
            @for (name, series) in gauges {
                @let values: Vec<f32> = series.values().collect();
                @let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).map(f64::from).collect();
                li {
                    span.gauge { (name.replace('_', " ")) }
                    strong.number { (series.last().map_or_else(|| "-".into(), |v| value(v.into()))) }
                    (sparkline(&values, &format!("{name} over the last hour"), None))
                    @if let (Some(low), Some(high)) = (finite.iter().copied().reduce(f64::min), finite.iter().copied().reduce(f64::max)) {
                        span.quiet { (value(low)) " to " (value(high)) }
                    }
                }
            }
        }
    };
    Some(Section::new("gauges", "Gauges of the device", "", content))
}
