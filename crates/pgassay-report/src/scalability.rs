//! A scalability curve in sentences, the same in the terminal and on the page.

use pgassay_account::scalability::{
    CurveFigure, CurvePoint, FittedLaw, LimitKind, ScalabilityCurve, ScalingLimit,
};

use crate::number;

/// A law that misses a measured throughput by more than this share is reported.
const MISS_NOTICEABLE: f64 = 0.05;
/// Intervals include what the law misses by at most this many standard deviations of misfit and noise.
const DEVIATIONS_INCLUDED: f64 = 2.0;
/// A throughput whose interval's ends differ by more than this factor is unknown.
const WIDTH_MAX: f64 = 4.0;

/// The answers, the most important first.
pub(crate) fn answers(curve: &ScalabilityCurve) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(law) = &curve.law {
        found.extend([peak(curve, law), knee(curve, law), parameters(law)]);
    }
    found.extend(
        curve
            .no_law
            .as_ref()
            .map(|why| format!("No law was fitted: {why}.")),
    );
    found.extend(rates(curve));
    found.extend(limit(curve));
    found.extend(curve.law.as_ref().and_then(|law| misfit(curve, law)));
    found
}

/// What was run and how long.
pub(crate) fn what_was_run(curve: &ScalabilityCurve) -> String {
    let rounds: u64 = curve.points.iter().map(|it| u64::from(it.rounds)).sum();
    format!(
        "{}; {} at {}, {} measuring",
        curve.load,
        number::count(rounds, "measurement"),
        match curve.points.len() {
            1 => "1 point".to_owned(),
            points => format!("{points} points"),
        },
        number::duration(curve.measured_s * 1e6),
    )
}

/// The numbers of clients that were measured: the fewest and the most.
#[derive(Debug, Clone, Copy)]
struct MeasuredClients {
    least: u32,
    most: u32,
}

/// Where a knee or a peak is among the measured numbers of clients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CurvePlace {
    BelowLeast,
    At(f64),
    AboveMost,
}

impl MeasuredClients {
    fn of(curve: &ScalabilityCurve) -> Self {
        let clients = || curve.points.iter().map(|it| it.clients);
        Self {
            least: clients().min().unwrap_or(0),
            most: clients().max().unwrap_or(0),
        }
    }

    fn place(self, figure: &CurveFigure) -> CurvePlace {
        match figure.estimate {
            Some(it) if it < f64::from(self.least) => CurvePlace::BelowLeast,
            Some(it) if it <= f64::from(self.most) => CurvePlace::At(it),
            _ => CurvePlace::AboveMost,
        }
    }

    /// Whether the whole interval of a figure is beyond what was measured.
    fn excludes(self, figure: &CurveFigure) -> bool {
        figure.low.is_none_or(|it| it > f64::from(self.most))
    }

    /// `[18.7, 30.2]`, `[less than 8, more than 64]`, as the page draws it.
    fn interval(self, figure: &CurveFigure) -> String {
        let end = |value: Option<f64>| match value {
            Some(value) if value < f64::from(self.least) => format!("less than {}", self.least),
            Some(value) if value <= f64::from(self.most) => number::decimals(value, 1),
            _ => format!("more than {}", self.most),
        };
        format!("[{}, {}]", end(figure.low), end(figure.high))
    }

    /// `at or below 8 clients, the fewest measured`, and the interval unless all of it is below.
    fn below(self, figure: &CurveFigure) -> String {
        let is_below = figure.high.is_some_and(|it| it < f64::from(self.least));
        let interval = if is_below {
            String::new()
        } else {
            format!(" {}", self.interval(figure))
        };
        let least = clients(f64::from(self.least));
        format!("at or below {least}, the fewest measured{interval}")
    }
}

/// An estimated number of clients, to a tenth as its interval.
fn about(clients: f64) -> String {
    format!("about {} clients", number::decimals(clients, 1))
}

fn clients(number: f64) -> String {
    number::count(number.round() as u64, "client")
}

fn tps_interval(figure: &CurveFigure) -> String {
    let end = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), number::tps);
    format!("[{}, {}]", end(figure.low), end(figure.high))
}

/// Whether an interval excludes anything of what was measured.
fn is_determined(curve: &ScalabilityCurve, figure: &CurveFigure) -> bool {
    let MeasuredClients { least, most } = MeasuredClients::of(curve);
    let excludes_least = figure.low.is_none_or(|it| it > f64::from(least));
    excludes_least || figure.high.is_some_and(|it| it < f64::from(most))
}

/// Whether the ends of an interval of a positive figure say anything about it.
fn is_narrow(figure: &CurveFigure) -> bool {
    let ends = figure.low.zip(figure.high);
    ends.is_some_and(|(low, high)| low > 0.0 && high / low <= WIDTH_MAX)
}

/// The measured point with the greatest throughput.
fn highest(curve: &ScalabilityCurve) -> Option<&CurvePoint> {
    let points = curve.points.iter();
    points.max_by(|a, b| a.tps().total_cmp(&b.tps()))
}

/// What charts mark: the knee and the peak with their names and places, if the measurements determine them.
pub(crate) fn marks(curve: &ScalabilityCurve) -> Vec<(&'static str, &CurveFigure, f64)> {
    let Some(law) = &curve.law else {
        return Vec::new();
    };
    let all = [
        ("knee", &law.knee, is_determined(curve, &law.knee)),
        ("peak", &law.peak, is_peak_determined(curve, law)),
    ];
    let known = all.into_iter().filter(|(_, _, is_known)| *is_known);
    let measured = MeasuredClients::of(curve);
    let places = known.filter_map(|(name, figure, _)| match measured.place(figure) {
        CurvePlace::At(place) => Some((name, figure, place)),
        CurvePlace::BelowLeast | CurvePlace::AboveMost => None,
    });
    places.collect()
}

fn is_peak_determined(curve: &ScalabilityCurve, law: &FittedLaw) -> bool {
    is_determined(curve, &law.peak) && is_narrow(&law.greatest)
}

fn peak(curve: &ScalabilityCurve, law: &FittedLaw) -> String {
    if !is_peak_determined(curve, law) {
        let highest = highest(curve).map_or_else(String::new, |it| {
            let (tps, clients) = (number::tps(it.tps()), clients(f64::from(it.clients)));
            format!(" The greatest measured throughput is {tps} tps, with {clients}.")
        });
        return format!(
            "These measurements do not determine where throughput peaks: use a longer --length, or more numbers \
             of clients.{highest}"
        );
    }
    let tps = number::tps(law.greatest.estimate.unwrap_or(0.0));
    let interval = tps_interval(&law.greatest);
    let measured = MeasuredClients::of(curve);
    let MeasuredClients { least, most } = measured;
    match measured.place(&law.peak) {
        CurvePlace::At(peak) => format!(
            "Throughput peaks at {} {} with {tps} tps {interval}.",
            about(peak),
            measured.interval(&law.peak)
        ),
        CurvePlace::BelowLeast => format!(
            "Throughput peaks {}. With {least}, the fitted curve (Universal Scalability Law) gives {tps} tps \
             {interval}.",
            measured.below(&law.peak)
        ),
        CurvePlace::AboveMost if !measured.excludes(&law.peak) => format!(
            "Throughput probably peaks beyond {most} clients {}. With {most}, the fitted curve (Universal Scalability \
             Law) gives {tps} tps {interval}.",
            measured.interval(&law.peak)
        ),
        CurvePlace::AboveMost => format!(
            "Throughput has no peak up to {most} clients, where the fitted curve (Universal Scalability Law) gives {tps} tps \
             {interval}."
        ),
    }
}

fn knee(curve: &ScalabilityCurve, law: &FittedLaw) -> String {
    if !is_determined(curve, &law.knee) {
        return "These measurements do not determine the knee.".to_owned();
    }
    let measured = MeasuredClients::of(curve);
    let place = match measured.place(&law.knee) {
        CurvePlace::At(knee) => format!("at {} {}", about(knee), measured.interval(&law.knee)),
        CurvePlace::BelowLeast => measured.below(&law.knee),
        CurvePlace::AboveMost if !measured.excludes(&law.knee) => {
            let (most, interval) = (measured.most, measured.interval(&law.knee));
            format!("probably beyond {most} clients {interval}")
        }
        CurvePlace::AboveMost => {
            return format!(
                "There is no knee up to {} clients: throughput still grows faster than latency.",
                measured.most
            );
        }
    };
    format!("The knee is {place}: with more, latency grows faster than throughput.")
}

fn parameters(law: &FittedLaw) -> String {
    let share = |figure: &CurveFigure| {
        if figure.high.is_none_or(|it| it > 1.0) {
            return "(not determined)".to_owned();
        }
        let percent = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), small_percent);
        let (low, high) = (percent(figure.low), percent(figure.high));
        format!("{} [{low}, {high}]", percent(figure.estimate))
    };
    format!(
        "Universal Scalability Law: one client {} tps {}; σ {} (contention: as if this share of the work were \
         serialized); κ {} (crosstalk: as if each pair of clients added this).",
        number::tps(law.per_client.estimate.unwrap_or(0.0)),
        tps_interval(&law.per_client),
        share(&law.contention),
        share(&law.crosstalk),
    )
}

/// A percentage with two digits, however small: κ is often far below 0.1%.
fn small_percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = match percent.abs() {
        10.0.. => 0,
        1.0.. => 1,
        0.1.. => 2,
        0.01.. => 3,
        0.0 => 0,
        _ => 4,
    };
    format!("{}%", number::decimals(percent, places))
}

/// Which rate the server sustained.
fn rates(curve: &ScalabilityCurve) -> Option<String> {
    let last = curve.points.iter().rev().find_map(|it| it.rate)?;
    let saturated = curve.points.get(curve.sustained_points());
    Some(match (curve.sustained_rate, saturated) {
        (Some(rate), None) => format!(
            "The server sustained every rate up to {} tps.",
            number::tps(rate.max(last))
        ),
        (Some(rate), Some(point)) => format!(
            "The server sustained {} tps; of {} tps, it completed {}.",
            number::tps(rate),
            number::tps(point.rate.unwrap_or(0.0)),
            number::tps(point.tps()),
        ),
        (None, _) => format!(
            "The server did not sustain the lowest rate; of {} tps, it completed {}.",
            number::tps(curve.points.first().and_then(|it| it.rate).unwrap_or(0.0)),
            number::tps(curve.points.first().map_or(0.0, CurvePoint::tps)),
        ),
    })
}

/// The limit of the last point, from where on it is the limit, and the limit before it.
fn limit(curve: &ScalabilityCurve) -> Option<String> {
    let last = curve.points.last()?.limit.as_ref()?;
    if last.kind == LimitKind::Nothing {
        return Some("No limit: the response time hardly grew.".to_owned());
    }
    // A rate that the server sustains has not reached a limit, if a higher one has.
    let sustained = curve.sustained_points();
    let first = if sustained < curve.points.len() {
        sustained
    } else {
        0
    };
    let limited: Vec<&CurvePoint> = curve.points[first..].iter().rev().collect();
    let mut groups = limited.chunk_by(|a, b| kind(a) == kind(b));
    let same = groups.next()?;
    let from = |point: &CurvePoint| match point.rate {
        Some(rate) => format!("{} tps", number::tps(rate)),
        None => clients(f64::from(point.clients)),
    };
    let most = from(curve.points.last()?);
    // The load generator is also the limit if it was busy, without any growth.
    let share = if last.us > 0.0 && last.growth_us > 0.0 {
        let share = number::percent((last.us / last.growth_us).min(1.0));
        format!(": at {most}, {share} of the growth of the response time")
    } else {
        String::new()
    };
    let sentence = format!(
        "From {} on, the limit is {}{share}.",
        from(same.last()?),
        limit_phrase(last, &rows(same))
    );
    // A single point may have another limit by chance.
    let earlier = groups.next().filter(|it| it.len() > 1);
    let earlier = earlier.and_then(|group| {
        let [most, .., least] = group else {
            return None;
        };
        let limit = least.limit.as_ref()?;
        (limit.kind != LimitKind::Nothing).then(|| {
            let phrase = limit_phrase(limit, &rows(group));
            let begin = least
                .rate
                .map_or_else(|| least.clients.to_string(), number::tps);
            format!("From {begin} to {}, it is {phrase}.", from(most))
        })
    });
    Some(match earlier {
        Some(earlier) => format!("{sentence} {earlier}"),
        None => sentence,
    })
}

fn kind(point: &CurvePoint) -> Option<LimitKind> {
    point.limit.as_ref().map(|it| it.kind)
}

/// The rows of the limits of points in descending order, each once and from the first point on.
fn rows(points: &[&CurvePoint]) -> String {
    let mut rows: Vec<&str> = Vec::new();
    for row in points.iter().rev().filter_map(|it| it.limit.as_ref()) {
        if !rows.contains(&row.row.as_str()) {
            rows.push(&row.row);
        }
    }
    rows.join(", ")
}

/// Whether and where the law misses the measurements by more than their noise.
fn misfit(curve: &ScalabilityCurve, law: &FittedLaw) -> Option<String> {
    let fitted = |it: &CurvePoint| law.throughput(f64::from(it.clients));
    let share = |it: &CurvePoint| (fitted(it) / it.tps() - 1.0).abs();
    let is_beyond_noise = |it: &CurvePoint| {
        let ends = it.throughput.low.zip(it.throughput.high);
        ends.is_none_or(|(low, high)| !(low..=high).contains(&fitted(it)))
    };
    let points = curve.points.iter();
    let missed = points.filter(|it| share(it) > MISS_NOTICEABLE && is_beyond_noise(it));
    let worst = missed.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let noise = law.noise.powi(2) / f64::from(worst.rounds.max(1));
    let deviation = (law.misfit.powi(2) + noise).sqrt();
    let is_included = (fitted(worst) / worst.tps()).ln().abs() <= DEVIATIONS_INCLUDED * deviation;
    Some(format!(
        "The law does not hold exactly: it misses the throughput of {} by {}. The intervals {} this.",
        clients(f64::from(worst.clients)),
        number::percent(share(worst)),
        if is_included {
            "include"
        } else {
            "are too narrow for"
        },
    ))
}

/// A limit in a table.
pub(crate) fn limit_name(limit: &ScalingLimit) -> String {
    match limit.kind {
        LimitKind::Nothing => "none".to_owned(),
        LimitKind::Processors => "CPUs".to_owned(),
        LimitKind::ServerCpu => "server CPU work".to_owned(),
        LimitKind::LoadGenerator => "load generator".to_owned(),
        LimitKind::Network => "network, wake-up".to_owned(),
        LimitKind::Unexplained => "unexplained".to_owned(),
        LimitKind::Clients => "clients busy".to_owned(),
        LimitKind::Locks
        | LimitKind::LightweightLocks
        | LimitKind::Storage
        | LimitKind::OtherWaits => limit.row.clone(),
    }
}

/// A limit in a sentence.
fn limit_phrase(limit: &ScalingLimit, row: &str) -> String {
    match limit.kind {
        LimitKind::Nothing => "nothing".to_owned(),
        LimitKind::Processors => format!("the CPUs ({row})"),
        LimitKind::ServerCpu => {
            "CPU work that each transaction does more of (spinning, cache misses)".to_owned()
        }
        LimitKind::Locks => format!("locks ({row})"),
        LimitKind::LightweightLocks => format!("lightweight locks ({row})"),
        LimitKind::Storage => format!("storage ({row})"),
        LimitKind::OtherWaits => format!("waiting ({row})"),
        LimitKind::LoadGenerator => format!("the load generator ({row}), not the server"),
        LimitKind::Network => "network and wake-up".to_owned(),
        LimitKind::Clients => {
            "the number of clients: transactions that are due wait for a free one".to_owned()
        }
        LimitKind::Unexplained if row.is_empty() => "time without an explanation".to_owned(),
        LimitKind::Unexplained => format!("time without an explanation ({row})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shares_keep_two_digits() {
        for (share, text) in [
            (0.345, "34%"),
            (0.0312, "3.1%"),
            (0.002, "0.20%"),
            (0.000_2, "0.020%"),
            (0.000_013, "0.0013%"),
            (0.0, "0%"),
        ] {
            assert_eq!(small_percent(share), text);
        }
    }

    #[test]
    fn intervals_beyond_the_measured_clients_say_so() {
        let figure = |low: f64, high: Option<f64>| CurveFigure {
            estimate: Some(low),
            low: Some(low),
            high,
        };
        let measured = MeasuredClients { least: 8, most: 64 };
        for (low, high, expected) in [
            (18.7, Some(30.2), "[18.7, 30.2]"),
            (18.7, None, "[18.7, more than 64]"),
            (18.7, Some(90.0), "[18.7, more than 64]"),
            (3.1, Some(30.2), "[less than 8, 30.2]"),
        ] {
            assert_eq!(measured.interval(&figure(low, high)), expected);
        }
    }
}
