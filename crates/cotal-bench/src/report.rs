//! What was measured, and how it is told.

use serde::Serialize;

/// One case: the median of its rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: String,
    /// What the limit reached.
    pub(crate) limit: f64,
    /// What the product reached.
    pub(crate) product: f64,
    /// How near the product comes: 1 is as good as the limit, more is better.
    pub(crate) ratio: f64,
    /// The ratio that is demanded.
    pub(crate) goal: f64,
    /// What `limit` and `product` count.
    pub(crate) unit: &'static str,
}

impl Case {
    /// A case in which more is better.
    pub(crate) fn rate(
        name: impl Into<String>,
        limit: &[f64],
        product: &[f64],
        goal: f64,
        unit: &'static str,
    ) -> Self {
        Self::of(name.into(), limit, product, |limit, product| product / limit, goal, unit)
    }

    /// A case in which less is better.
    pub(crate) fn cost(
        name: impl Into<String>,
        limit: &[f64],
        product: &[f64],
        goal: f64,
        unit: &'static str,
    ) -> Self {
        Self::of(name.into(), limit, product, |limit, product| limit / product, goal, unit)
    }

    /// The ratio is taken round by round, because both sides of a round met the same machine.
    fn of(
        name: String,
        limit: &[f64],
        product: &[f64],
        ratio: impl Fn(f64, f64) -> f64,
        goal: f64,
        unit: &'static str,
    ) -> Self {
        let ratios: Vec<f64> = limit.iter().zip(product).map(|(l, p)| ratio(*l, *p)).collect();
        let (limit, product, ratio) = (median(limit), median(product), median(&ratios));
        Self { name, limit, product, ratio, goal, unit }
    }

    fn holds(&self) -> bool {
        self.ratio >= self.goal
    }
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    bench: &'static str,
    cases: Vec<Case>,
}

impl Report {
    /// An empty report.
    pub(crate) fn new() -> Self {
        Self { bench: "cotal", cases: Vec::new() }
    }

    /// Adds a case and tells it at once.
    pub(crate) fn add(&mut self, case: Case) {
        eprintln!("{}", line(&case));
        self.cases.push(case);
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// The report as a table.
    pub(crate) fn table(&self) -> String {
        let lines: Vec<String> = self.cases.iter().map(line).collect();
        lines.join("\n")
    }

    /// The cases below their goal.
    pub(crate) fn missed(&self) -> Vec<&str> {
        self.cases.iter().filter(|case| !case.holds()).map(|case| case.name.as_str()).collect()
    }
}

fn line(case: &Case) -> String {
    let verdict = if case.holds() { "ok" } else { "BELOW THE GOAL" };
    format!(
        "{:<16} limit {:>10.1}  product {:>10.1} {:<9} ratio {:>5.2} (goal {:.2}) {verdict}",
        case.name, case.limit, case.product, case.unit, case.ratio, case.goal
    )
}

/// The middle value; the mean of the two middle ones of an even count.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// A quantile, between the values nearest to it.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = q * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0, 20.0], 0.99), 19.8);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_and_one_is_as_good_as_the_limit() {
        let rate = Case::rate("r", &[100.0, 200.0, 100.0], &[90.0, 100.0, 80.0], 0.7, "copies/s");
        assert_eq!(rate.ratio, 0.8);
        assert!(rate.holds());
        let cost = Case::cost("c", &[1.0], &[2.0], 0.7, "ms");
        assert_eq!(cost.ratio, 0.5);
        let mut report = Report::new();
        report.add(rate);
        report.add(cost);
        assert_eq!(report.missed(), ["c"]);
    }
}
