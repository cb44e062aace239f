//! Resizing of gray or color images, with precomputed weights.
//!
//! Equal to OpenCV's `resize` to one gray level: OpenCV adds up `f32` (area) or rounds between the
//! axes (linear), this code adds up integers and rounds once.

/// Resize of one axis: output `j` is the sum of `weights[j]` times the inputs from `start[j]` on,
/// divided by `total`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) start: Vec<u32>,
    /// Weights of all outputs, the same number for each, padded with zeros.
    pub(super) weights: Vec<u32>,
    /// Number of weights of one output.
    pub(super) taps: usize,
    /// Sum of the weights of one output.
    pub(super) total: u32,
}

/// Denominator of a linear weight, as in OpenCV.
const LINEAR: f64 = 2048.0;

impl Axis {
    fn new(input: usize, output: usize, rows: impl Fn(usize) -> (usize, Vec<u32>)) -> Axis {
        let found: Vec<(usize, Vec<u32>)> = (0..output).map(rows).collect();
        let taps = found.iter().map(|(_, weights)| weights.len()).max().unwrap_or(1);
        let mut axis = Axis { start: Vec::new(), weights: Vec::new(), taps, total: 0 };
        for (start, mut weights) in found {
            axis.total = weights.iter().sum();
            // Moves the window inside the input, so that the zero weights also have inputs.
            let moved = (start + taps).saturating_sub(input);
            weights.splice(0..0, std::iter::repeat_n(0, moved));
            weights.resize(taps, 0);
            axis.start.push((start - moved) as u32);
            axis.weights.extend(weights);
        }
        axis
    }

    /// Each output is the mean of the inputs that it covers (INTER_AREA, to a smaller size).
    fn area(input: usize, output: usize) -> Axis {
        // In units in which the widths of an output (`wide`) and an input (`narrow`) are integers.
        let unit = gcd(input, output);
        let (wide, narrow) = (input / unit, output / unit);
        Axis::new(input, output, |j| {
            let (from, to) = (j * wide, (j + 1) * wide);
            let start = from / narrow;
            let weights = (start..to.div_ceil(narrow))
                .map(|i| (to.min((i + 1) * narrow) - from.max(i * narrow)) as u32);
            (start, weights.collect())
        })
    }

    /// Each output is interpolated between two inputs, at position `place(j)`.
    fn between(input: usize, output: usize, place: impl Fn(usize) -> f64) -> Axis {
        Axis::new(input, output, |j| {
            let place = place(j).clamp(0.0, (input - 1) as f64);
            let second = ((place - place.floor()) * LINEAR).round() as u32;
            let first = LINEAR as u32 - second;
            let start = place.floor() as usize;
            (start, if start + 1 < input { vec![first, second] } else { vec![LINEAR as u32] })
        })
    }

    /// INTER_LINEAR: the centers of the pixels stay in place.
    fn linear(input: usize, output: usize) -> Axis {
        let scale = input as f64 / output as f64;
        Axis::between(input, output, |j| (j as f64 + 0.5) * scale - 0.5)
    }

    /// INTER_AREA to a larger size: an output is one input, except where it crosses into the next.
    fn area_enlarged(input: usize, output: usize) -> Axis {
        let (scale, inverse) = (input as f64 / output as f64, output as f64 / input as f64);
        Axis::between(input, output, |j| {
            let start = (j as f64 * scale).floor();
            let beyond = (j as f64 + 1.0) - (start + 1.0) * inverse;
            start + if beyond <= 0.0 { 0.0 } else { beyond - beyond.floor() }
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Resizes images from one size to another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resize {
    pub(super) rows: Axis,
    pub(super) columns: Axis,
    pub(super) from: (usize, usize),
    pub(super) to: (usize, usize),
}

impl Resize {
    /// Makes a resize from size `from` to size `to`, both as (rows, columns).
    pub(super) fn new(from: (usize, usize), to: (usize, usize), area: bool) -> Resize {
        let axis: fn(usize, usize) -> Axis = match area {
            true if to.0 <= from.0 && to.1 <= from.1 => Axis::area,
            true => Axis::area_enlarged,
            false => Axis::linear,
        };
        Resize { rows: axis(from.0, to.0), columns: axis(from.1, to.1), from, to }
    }

    /// Resizes one plane, row by row; `scratch` is a reusable buffer.
    pub(super) fn plane(&self, input: &[u8], output: &mut [u8], scratch: &mut Vec<u32>) {
        let width = self.from.1;
        assert_eq!((input.len(), output.len()), (self.from.0 * width, self.to.0 * self.to.1));
        let total = self.rows.total * self.columns.total;
        let rows = &self.rows;
        for (j, out) in output.chunks_exact_mut(self.to.1).enumerate() {
            scratch.clear();
            scratch.resize(width, 0);
            for (k, &weight) in rows.weights[j * rows.taps..][..rows.taps].iter().enumerate() {
                let line = &input[(rows.start[j] as usize + k) * width..][..width];
                for (sum, &pixel) in scratch.iter_mut().zip(line) {
                    *sum += weight * u32::from(pixel);
                }
            }
            let taps = self.columns.taps;
            let weights = self.columns.weights.chunks_exact(taps);
            for ((out, &start), weights) in out.iter_mut().zip(&self.columns.start).zip(weights) {
                let inputs = &scratch[start as usize..][..taps];
                let sum: u32 = weights.iter().zip(inputs).map(|(w, x)| w * x).sum();
                *out = ((sum + total / 2) / total) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    const FIXTURE: &[u8] = include_bytes!("../../../tests/fixtures/envs/atari_resize.safetensors");

    /// Equal to one gray level: OpenCV adds up floats, or rounds between the axes.
    #[test]
    fn resizes_as_opencv() {
        let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
        let mut compared = 0;
        for (name, wanted) in tensors.tensors() {
            let Some(setting) = name.strip_prefix("resize/") else { continue };
            let [height, rows, columns, how] = setting.split('_').collect::<Vec<_>>()[..] else {
                continue;
            };
            let number = |text: &str| text.parse::<usize>().unwrap();
            let picture = tensors.tensor(&format!("resize/{height}")).unwrap();
            let to = (number(rows), number(columns));
            let resize = Resize::new((number(height), 160), to, how == "area");
            let mut ours = vec![0; to.0 * to.1];
            resize.plane(picture.data(), &mut ours, &mut Vec::new());
            let off = ours.iter().zip(wanted.data()).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(off <= Some(1), "{name}: {off:?}");
            compared += 1;
        }
        assert_eq!(compared, 18);
    }
}
