//! Pareto front of plans in memory and time.

/// Memory and step time of a tried plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Peak in bytes.
    pub bytes: u64,
    /// Time of a step, in any unit.
    pub time: f64,
}

/// Indices of the Pareto front, fastest first. Of equal points, the first is kept.
pub fn front(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&points[*a], &points[*b]);
        a.time.total_cmp(&b.time).then(a.bytes.cmp(&b.bytes))
    });
    let mut least = None;
    order.retain(|index| {
        let bytes = points[*index].bytes;
        let stays = least.is_none_or(|least| bytes < least);
        if stays {
            least = Some(bytes);
        }
        stays
    });
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_front_is_undominated_and_dominates_the_rest(
            points in proptest::collection::vec((0..20_u64, 0..20_u32), 0..30)
        ) {
            let points: Vec<Point> =
                points.into_iter().map(|(bytes, time)| Point { bytes, time: f64::from(time) }).collect();
            let front = front(&points);
            let beats = |a: &Point, b: &Point| a.bytes <= b.bytes && a.time <= b.time && a != b;
            for (index, point) in points.iter().enumerate() {
                if front.contains(&index) {
                    prop_assert!(!points.iter().any(|other| beats(other, point)));
                } else {
                    prop_assert!(front.iter().any(|other| points[*other] == *point || beats(&points[*other], point)));
                }
            }
        }
    }
}
