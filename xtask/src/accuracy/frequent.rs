//! Measures frequencies and top lists on streams by Zipf's law.

use quipu_sketch::count_min::Update;
use quipu_sketch::{CountMin, Edits, Key, Top};

use super::figures::{AccuracyReport, Curve, ProgressCallback, ReportRow, Scale, on_two_threads};
use super::rng::{Rng, Zipf};

const KEY: Key = Key(*b"key of a measure");

/// Skews, one for each thread.
const EXPONENTS: [f64; 2] = [1.0, 0.7];

/// Memory of frequencies: four rows in 256 KB.
const FREQUENCY_BYTES: usize = 256 << 10;
const DEPTH: u32 = 4;

/// Number of items with compared frequencies.
const COMPARED: usize = 1000;

/// Length of the top lists, and their memory.
const K: u32 = 100;
const TOP_BYTES: [usize; 4] = [8 << 10, 16 << 10, 64 << 10, 256 << 10];

struct StreamFigures {
    /// Mean relative errors of the most frequent items: linear, its typical value, conservative,
    /// its typical value.
    errors: [f64; 4],
    /// Mean distances from the truth, over all seen items.
    excess: [f64; 4],
    /// Number of frequencies below the truth.
    too_low: u64,
    /// For each memory: correct list entries, and items with violated bounds.
    tops: Vec<(f64, u64)>,
}

impl StreamFigures {
    /// Averages errors and list entries over all streams, and sums the violations.
    fn mean(all: Vec<StreamFigures>) -> StreamFigures {
        let count = all.len() as f64;
        let mean = |figure: &dyn Fn(&StreamFigures) -> f64| all.iter().map(figure).sum::<f64>() / count;
        let sizes = 0..TOP_BYTES.len();
        StreamFigures {
            errors: std::array::from_fn(|at| mean(&|figures| figures.errors[at])),
            excess: std::array::from_fn(|at| mean(&|figures| figures.excess[at])),
            too_low: all.iter().map(|figures| figures.too_low).sum(),
            tops: sizes
                .map(|at| (mean(&|figures| figures.tops[at].0), all.iter().map(|figures| figures.tops[at].1).sum()))
                .collect(),
        }
    }
}

pub fn measure(scale: Scale, seed: u64, progress: ProgressCallback<'_>, report: &mut AccuracyReport) {
    let (universe, events, streams) =
        if scale == Scale::Full { (1_000_000, 10_000_000, 3) } else { (100_000, 500_000, 1) };
    let figures = on_two_threads(|half| {
        let zipf = Zipf::new(universe, EXPONENTS[half as usize]);
        let one = |index: u64| {
            stream(&zipf, events, &mut Rng::new(seed, 2 * index + half), &|done| {
                if half == 0 {
                    progress("frequencies and top lists", (index as f64 + done) / streams as f64);
                }
            })
        };
        StreamFigures::mean((0..streams).map(one).collect())
    });
    let [steep, flat] = &figures;
    let mut row = |name: &str, unit, measured, published| {
        report.rows.push(ReportRow { name: name.into(), unit, measured, published });
    };
    row("frequency error, Zipf 1.0, 256 KB, top 1,000", "%", steep.errors[2], "linear 12.2");
    row("CMS.* error, the same", "%", steep.errors[0], "12.2");
    row("CMS.* error of typical values, the same", "%", steep.errors[1], "");
    row("frequency error of typical values, the same", "%", steep.errors[3], "");
    row("frequency, mean excess of all items", "items", steep.excess[2], "");
    row("frequency, mean distance of typical values of all items", "items", steep.excess[3], "");
    row("CMS.*, mean excess of all items", "items", steep.excess[0], "");
    row("CMS.*, mean distance of typical values of all items", "items", steep.excess[1], "");
    row("frequencies below the truth", "items", (steep.too_low + flat.too_low) as f64, "0");
    let at = |bytes: usize| TOP_BYTES.iter().position(|size| *size == bytes).expect("it is one of them");
    row("top 100, Zipf 1.0, 16 KB: right places", "of 100", steep.tops[at(16 << 10)].0, "HeavyKeeper 100");
    row("top 100, Zipf 0.7, 64 KB: right places", "of 100", flat.tops[at(64 << 10)].0, "HeavyKeeper 100");
    let broken: u64 = figures.iter().flat_map(|figures| &figures.tops).map(|(_, broken)| broken).sum();
    row("top lists: limits that do not hold", "items", broken as f64, "HeavyKeeper has none");
    for (exponent, figures) in EXPONENTS.iter().zip(&figures) {
        let points = TOP_BYTES.iter().zip(&figures.tops).map(|(bytes, (right, _))| (*bytes as f64, *right)).collect();
        let name = format!("Zipf {exponent:.1}");
        report.curves.push(Curve { plot: "top", name, x: "bytes", y: "right places of 100", points });
    }
}

/// Estimated number of occurrences of an item, by one of the sketches.
type CountQuery<'a> = dyn Fn(&[u8]) -> u64 + 'a;

fn stream(zipf: &Zipf, events: u64, rng: &mut Rng, progress: &dyn Fn(f64)) -> StreamFigures {
    let universe = zipf.universe();
    let width = (FREQUENCY_BYTES / 4) as u32 / DEPTH;
    let sized = |update| CountMin::by_size(update, width, DEPTH).expect("it is small");
    let mut linear = sized(Update::Linear);
    let mut careful = sized(Update::Conservative);
    let mut tops = TOP_BYTES.map(|bytes| Top::in_bytes(K, bytes).expect("it is small"));
    let mut truth = vec![0u64; universe as usize];
    let mut edits = Edits::new();
    for event in 0..events {
        let rank = zipf.draw(rng);
        truth[rank as usize] += 1;
        let item = item(rank);
        let hash = KEY.hash(&item);
        let counted = linear.add_hash(hash, 1, &mut edits).and(careful.add_hash(hash, 1, &mut edits));
        counted.expect("so few events fit");
        for top in &mut tops {
            top.add(&KEY, &item, 1, &mut edits).expect("so few events fit");
        }
        edits.clear();
        if event % 65_536 == 0 {
            progress(event as f64 / events as f64);
        }
    }

    let mut ranks: Vec<u32> = (0..universe).collect();
    ranks.sort_unstable_by_key(|rank| std::cmp::Reverse(truth[*rank as usize]));
    let error = |answer: &CountQuery<'_>| {
        let off = |rank: &u32| (answer(&item(*rank)) as f64 / truth[*rank as usize] as f64 - 1.0).abs();
        100.0 * ranks[..COMPARED].iter().map(off).sum::<f64>() / COMPARED as f64
    };
    let came = truth.iter().filter(|count| **count > 0).count();
    let excess = |answer: &CountQuery<'_>| {
        let off = |rank: &u32| answer(&item(*rank)).abs_diff(truth[*rank as usize]) as f64;
        ranks[..came].iter().map(off).sum::<f64>() / came as f64
    };
    let answers: [&CountQuery<'_>; 4] = [
        &|item| linear.query(&KEY, item).at_most,
        &|item| linear.query(&KEY, item).typical,
        &|item| careful.query(&KEY, item).at_most,
        &|item| careful.query(&KEY, item).typical,
    ];
    let errors = answers.map(error);
    let excess = answers.map(excess);
    let low = |rank: &u32| {
        let truth = truth[*rank as usize];
        linear.query(&KEY, &item(*rank)).at_most < truth || careful.query(&KEY, &item(*rank)).at_most < truth
    };
    let too_low = ranks.iter().filter(|rank| low(rank)).count() as u64;
    let last = truth[ranks[K as usize - 1] as usize];
    let judge = |top: &Top| {
        let right = top.list().iter().filter(|row| truth[rank(&row.item) as usize] >= last).count();
        let holds = |rank: &u32| {
            let bounds = top.bounds(&KEY, &item(*rank));
            (bounds.at_least..=bounds.at_most).contains(&truth[*rank as usize])
        };
        (right as f64 * 100.0 / f64::from(K), ranks.iter().filter(|rank| !holds(rank)).count() as u64)
    };
    StreamFigures { errors, excess, too_low, tops: tops.iter().map(judge).collect() }
}

fn item(rank: u32) -> [u8; 8] {
    u64::from(rank).to_le_bytes()
}

fn rank(item: &[u8]) -> u32 {
    item.try_into().map_or(u32::MAX, |item| u64::from_le_bytes(item) as u32)
}
