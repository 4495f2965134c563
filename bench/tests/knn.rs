//! The k-NN benchmark in small: recalls are reached on every drawn set, and figures are written and read back.

use iceformer_bench::knn::{self, data, plot, report};

#[test]
fn every_drawn_set_is_searched_at_the_recall_asked_for() {
    let mut points = Vec::new();
    for name in data::DRAWN {
        let set = data::drawn(name, 4000, 800, 24, 10).unwrap();
        for target in [0.9f32, 0.99, 1.0] {
            let outcome = knn::run(&set, 10, target).unwrap();
            let floor = if target < 1.0 { f64::from(target) - 0.03 } else { 1.0 };
            assert!(outcome.recall >= floor, "{name}: {} of {target}", outcome.recall);
            assert!(outcome.recall <= 1.0 && outcome.build > 0.0 && outcome.query > 0.0);
            points.push(report::Point::new(name, 10, outcome));
        }
        let churn = knn::churn(&set, 10).unwrap();
        assert!(churn.recall >= 0.9, "{name}: {} after churn", churn.recall);
    }
    assert!(data::drawn("nothing", 10, 10, 2, 1).is_err());
    let text = report::json(&points).unwrap();
    let path = std::env::temp_dir().join(format!("knn-{}.json", std::process::id()));
    std::fs::write(&path, &text).unwrap();
    let back = report::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(report::json(&back).unwrap(), text);
    let tables = report::tables(&back);
    assert!(data::DRAWN.iter().all(|name| tables.contains(&format!("`{name}`"))));
    assert!(plot::svg(&back).unwrap().contains("iceformer exact"));
}
