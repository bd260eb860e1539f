//! The load of ranks over the time of a simulation, drawn as SVG. The text names a font family and leaves the choice to the viewer.

use nacre_balance::Simulated;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height in pixels.
const SIZE: (u32, u32) = (860, 480);
/// The number of ranks up to which each has a line.
const LINES_MAX: usize = 7;

/// Colours that most people can tell apart, also in print (Okabe and Ito's).
const COLOURS: [RGBColor; LINES_MAX] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// Draws a simulation, and returns the text of the SVG file.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(simulated: &Simulated) -> Result<String, String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    draw(simulated, &area).map_err(|error| format!("the figure cannot be drawn: {error}"))?;
    drop(area);
    Ok(text)
}

/// A line with its name.
type Line = (String, Vec<(f64, f64)>);

/// Returns a line for each rank, or three for many of them.
fn lines(simulated: &Simulated) -> Vec<Line> {
    let ranks = simulated.steps.first().map_or(0, |step| step.loads.len());
    let line = |of: &dyn Fn(&[f64]) -> f64| -> Vec<(f64, f64)> {
        simulated.steps.iter().map(|step| (step.at_s, of(&step.loads))).collect()
    };
    if ranks <= LINES_MAX {
        return (0..ranks).map(|rank| (format!("rank {rank}"), line(&|loads| loads[rank]))).collect();
    }
    vec![
        ("busiest rank".to_owned(), line(&|loads| loads.iter().copied().fold(0.0, f64::max))),
        ("mean".to_owned(), line(&|loads| loads.iter().sum::<f64>() / loads.len() as f64)),
        ("idlest rank".to_owned(), line(&|loads| loads.iter().copied().fold(f64::INFINITY, f64::min))),
    ]
}

fn draw(
    simulated: &Simulated,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let lines = lines(simulated);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let end = points().map(|(at, _)| *at).fold(1.0, f64::max);
    let most = points().map(|(_, load)| *load).fold(1e-9, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..end, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("load, requests per second")
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use nacre_balance::Step;

    use super::*;

    #[test]
    fn a_figure_has_a_line_for_each_rank_or_three() {
        let step = |at_s, ranks| Step {
            at_s,
            loads: vec![at_s; ranks],
            served: 1.0,
            moves: Vec::new(),
            notes: Vec::new(),
            log: Vec::new(),
        };
        for (ranks, names) in
            [(2, vec!["rank 0", "rank 1"]), (100, vec!["busiest rank", "mean", "idlest rank"])]
        {
            let steps = vec![step(0.0, ranks), step(10.0, ranks)];
            let svg = svg(&Simulated { steps, ..Simulated::default() }).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(names.iter().all(|name| svg.contains(name)), "{svg}");
        }
    }
}
