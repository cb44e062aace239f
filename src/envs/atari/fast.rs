//! Conversion of screens to frames on processors with AVX2, 32 pixels at a time.
//!
//! The horizontal step is first, while pixels are bytes: seven outputs are shuffles of 16 inputs.
//! All sums are integers that fit 16 bits, so the result is equal to that of the plain code bit for
//! bit.
//!
//! Rows of the screen that did not change since the previous frame are not drawn again: most rows
//! of most games.

#![cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]

use super::colors::Look;
use super::resize::Resize;

/// Number of columns of every screen.
const WIDTH: usize = 160;
/// Number of outputs computed at once: half a vector, whose eighth element is unused.
const GROUP: usize = 7;

/// Resize from 160 columns, prepared for vectors, and the frame that it made last.
pub(super) struct Fast {
    /// Lookup table of pixel values: 16 tables of 16 bytes, each stored twice, indexed by the upper
    /// and the lower half of the pixel value.
    tables: [[u8; 32]; 16],
    /// Screens of the last frame.
    drawn: [Vec<u8>; 2],
    /// True if there is a last frame.
    any: bool,
    /// True for each row that differs from that of the last frame.
    changed: Vec<bool>,
    /// The last frame.
    frame: Vec<u8>,
    /// Pairs of two groups of outputs.
    pairs: Vec<Pair>,
    /// First input row of every output row.
    start: Vec<usize>,
    /// Weights of the input rows of every output row.
    weights: Vec<u16>,
    taps: usize,
    /// Half of the sum of all weights, for rounding.
    half: u16,
    /// Division by the sum of all weights: `(sum >> shift) * magic >> 16 >> post`.
    divide: (u32, u16, u32),
    /// Row of the screen, followed by zeros that a vector load may read.
    line: [u8; WIDTH + 32],
    /// Rows after the horizontal step, `stride` apart.
    rows: Vec<u16>,
    stride: usize,
    columns: usize,
}

struct Pair {
    /// First of the 16 inputs of each of the two groups.
    from: [usize; 2],
    /// Indices of the first and second input of each output.
    first_two: [u8; 32],
    /// Index of the third input of each output; every second element selects none.
    third: [u8; 32],
    first_two_weights: [i8; 32],
    third_weights: [i8; 32],
}

impl Fast {
    /// Returns `None` if the processor or the sizes are not supported.
    pub(super) fn new(resize: &Resize, look: &Look) -> Option<Fast> {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            return Fast::plan(resize, look);
        }
        let _ = (resize, look);
        None
    }

    fn plan(resize: &Resize, look: &Look) -> Option<Fast> {
        let (axis, total) = (&resize.columns, resize.rows.total * resize.columns.total);
        let fits = resize.from.1 == WIDTH
            && axis.taps <= 3
            && axis.weights.iter().all(|&weight| weight <= 127)
            && 255 * axis.total <= i16::MAX as u32
            && 255 * total + total / 2 <= u32::from(u16::MAX);
        if !fits {
            return None;
        }
        let columns = resize.to.1;
        let mut groups = Vec::new();
        for group in (0..columns).step_by(GROUP) {
            groups.push(group_of(resize, group..(group + GROUP).min(columns))?);
        }
        if groups.len() % 2 == 1 {
            groups.push(Group::default());
        }
        let stride = (groups.len() * GROUP + 1).next_multiple_of(16);
        Some(Fast {
            tables: std::array::from_fn(|k| std::array::from_fn(|i| look[16 * k + i % 16])),
            drawn: [vec![0; resize.from.0 * WIDTH], vec![0; resize.from.0 * WIDTH]],
            any: false,
            changed: vec![true; resize.from.0],
            frame: vec![0; resize.to.0 * columns],
            pairs: groups.chunks_exact(2).map(Pair::new).collect(),
            start: resize.rows.start.iter().map(|&start| start as usize).collect(),
            weights: resize.rows.weights.iter().map(|&weight| weight as u16).collect(),
            taps: resize.rows.taps,
            half: (total / 2) as u16,
            divide: divide_by(total)?,
            line: [0; WIDTH + 32],
            rows: vec![0; resize.from.0 * stride],
            stride,
            columns,
        })
    }

    /// Draws the maximum of two screens, resized.
    pub(super) fn draw(&mut self, before: &[u8], last: &[u8], frame: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Fast::new` makes one only where the processor has AVX2.
        unsafe {
            self.draw_avx2(before, last);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (before, last);
        frame.copy_from_slice(&self.frame);
    }
}

/// Shuffles and weights of up to seven outputs.
#[derive(Default)]
struct Group {
    from: usize,
    first_two: [u8; 16],
    third: [u8; 16],
    first_two_weights: [i8; 16],
    third_weights: [i8; 16],
}

fn group_of(resize: &Resize, outputs: std::ops::Range<usize>) -> Option<Group> {
    let axis = &resize.columns;
    // A shuffle index with the highest bit set gives zero.
    let mut group = Group { third: [0x80; 16], first_two: [0x80; 16], ..Group::default() };
    group.from = axis.start[outputs.start] as usize;
    for (k, output) in outputs.enumerate() {
        for tap in 0..axis.taps {
            let weight = axis.weights[output * axis.taps + tap] as i8;
            if weight == 0 {
                continue;
            }
            let input = axis.start[output] as usize + tap - group.from;
            let input = u8::try_from(input).ok().filter(|&input| input < 16)?;
            let (inputs, weights, place) = match tap {
                2 => (&mut group.third, &mut group.third_weights, 2 * k),
                _ => (&mut group.first_two, &mut group.first_two_weights, 2 * k + tap),
            };
            (inputs[place], weights[place]) = (input, weight);
        }
    }
    Some(group)
}

impl Pair {
    fn new(groups: &[Group]) -> Pair {
        fn join<T: Copy + Default>(groups: &[Group], part: impl Fn(&Group) -> [T; 16]) -> [T; 32] {
            let (first, second) = (part(&groups[0]), part(&groups[1]));
            std::array::from_fn(|i| if i < 16 { first[i] } else { second[i - 16] })
        }
        Pair {
            from: [groups[0].from, groups[1].from],
            first_two: join(groups, |group| group.first_two),
            third: join(groups, |group| group.third),
            first_two_weights: join(groups, |group| group.first_two_weights),
            third_weights: join(groups, |group| group.third_weights),
        }
    }
}

/// Returns shift, factor and shift that divide every 16-bit number by `total`, if there are any.
fn divide_by(total: u32) -> Option<(u32, u16, u32)> {
    // A power of two keeps one factor of 2; otherwise its magic number would not fit.
    let shift = total.trailing_zeros().saturating_sub(u32::from(total.is_power_of_two()));
    let odd = total >> shift;
    (0..16).rev().find_map(|post| {
        let magic = (1u64 << (16 + post)).div_ceil(odd.into());
        let magic = u16::try_from(magic).ok()?;
        let divided = |x: u32| ((((x >> shift) * u32::from(magic)) >> 16) >> post) == x / total;
        (0..=u32::from(u16::MAX)).all(divided).then_some((shift, magic, post))
    })
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Fast, GROUP, WIDTH};

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8]) -> __m256i {
        bytemuck::pod_read_unaligned(&bytes[..32])
    }

    /// Looks up 32 pixels.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up(tables: &[[u8; 32]; 16], mut pixels: __m256i) -> __m256i {
        let mut found = _mm256_setzero_si256();
        let (out_of_range, next) = (_mm256_set1_epi8(0x70), _mm256_set1_epi8(16));
        for table in tables {
            // 0 to 15 become 0x70 to 0x7f, of which a shuffle uses the lower half; all other values
            // get the highest bit, for which a shuffle gives zero.
            let index = _mm256_adds_epu8(pixels, out_of_range);
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(load(table), index));
            pixels = _mm256_sub_epi8(pixels, next);
        }
        found
    }

    /// Returns true if two rows differ.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn differ(a: &[u8], b: &[u8]) -> bool {
        let mut bits = _mm256_setzero_si256();
        for k in 0..WIDTH / 32 {
            let (a, b) = (load(&a[32 * k..]), load(&b[32 * k..]));
            bits = _mm256_or_si256(bits, _mm256_xor_si256(a, b));
        }
        _mm256_testz_si256(bits, bits) == 0
    }

    impl Fast {
        #[target_feature(enable = "avx2")]
        pub(super) fn draw_avx2(&mut self, before: &[u8], last: &[u8]) {
            let screens = before.chunks_exact(WIDTH).zip(last.chunks_exact(WIDTH));
            let mut any = false;
            for (y, (before, last)) in screens.enumerate() {
                let [old_before, old_last] = &mut self.drawn;
                let old_before = &mut old_before[WIDTH * y..][..WIDTH];
                let old_last = &mut old_last[WIDTH * y..][..WIDTH];
                let changed = !self.any || differ(last, old_last) || differ(before, old_before);
                self.changed[y] = changed;
                if !changed {
                    continue;
                }
                any = true;
                old_before.copy_from_slice(before);
                old_last.copy_from_slice(last);
                self.see_row(before, last);
                self.horizontal(y);
            }
            self.any = true;
            if any {
                self.vertical();
            }
        }

        /// Fills `line` with the brighter of the two pixels of each column.
        #[inline]
        #[target_feature(enable = "avx2")]
        fn see_row(&mut self, before: &[u8], last: &[u8]) {
            for (k, out) in self.line[..WIDTH].chunks_exact_mut(32).enumerate() {
                let (a, b) = (load(&before[32 * k..]), load(&last[32 * k..]));
                let mut seen = look_up(&self.tables, b);
                // Most pixels are the same in both screens.
                let differ = _mm256_xor_si256(a, b);
                if _mm256_testz_si256(differ, differ) == 0 {
                    seen = _mm256_max_epu8(seen, look_up(&self.tables, a));
                }
                out.copy_from_slice(bytemuck::bytes_of(&seen));
            }
        }

        /// Resizes `line` horizontally to a row of `rows`.
        #[inline]
        #[target_feature(enable = "avx2")]
        fn horizontal(&mut self, y: usize) {
            let row = &mut self.rows[y * self.stride..][..self.stride];
            for (k, pair) in self.pairs.iter().enumerate() {
                let low: __m128i = bytemuck::pod_read_unaligned(&self.line[pair.from[0]..][..16]);
                let high: __m128i = bytemuck::pod_read_unaligned(&self.line[pair.from[1]..][..16]);
                let inputs = _mm256_set_m128i(high, low);
                let two = _mm256_maddubs_epi16(
                    _mm256_shuffle_epi8(inputs, load(&pair.first_two)),
                    load(bytemuck::cast_slice(&pair.first_two_weights)),
                );
                let third = _mm256_maddubs_epi16(
                    _mm256_shuffle_epi8(inputs, load(&pair.third)),
                    load(bytemuck::cast_slice(&pair.third_weights)),
                );
                let sums: [[u16; 8]; 2] = bytemuck::cast(_mm256_add_epi16(two, third));
                // The eighth element of each is overwritten by the next group.
                let out = &mut row[2 * GROUP * k..];
                out[..8].copy_from_slice(&sums[0]);
                out[GROUP..GROUP + 8].copy_from_slice(&sums[1]);
            }
        }

        /// Resizes `rows` vertically to the rows of `frame` that have changed.
        #[target_feature(enable = "avx2")]
        fn vertical(&mut self) {
            let (shift, magic, post) = self.divide;
            let (shift, post) = (_mm_cvtsi32_si128(shift as i32), _mm_cvtsi32_si128(post as i32));
            let magic = _mm256_set1_epi16(magic as i16);
            let weights = self.weights.chunks_exact(self.taps);
            let outputs = self.frame.chunks_exact_mut(self.columns);
            for ((out, weights), &start) in outputs.zip(weights).zip(&self.start) {
                if !self.changed[start..start + self.taps].contains(&true) {
                    continue;
                }
                for (chunk, out) in out.chunks_mut(16).enumerate() {
                    let mut sums = _mm256_set1_epi16(self.half as i16);
                    for (k, &weight) in weights.iter().enumerate() {
                        let at = (start + k) * self.stride + 16 * chunk;
                        let values = load(bytemuck::cast_slice(&self.rows[at..at + 16]));
                        let weight = _mm256_set1_epi16(weight as i16);
                        sums = _mm256_add_epi16(sums, _mm256_mullo_epi16(values, weight));
                    }
                    let means = _mm256_srl_epi16(sums, shift);
                    let means = _mm256_srl_epi16(_mm256_mulhi_epu16(means, magic), post);
                    let means: [u16; 16] = bytemuck::cast(means);
                    for (out, mean) in out.iter_mut().zip(means) {
                        *out = mean as u8;
                    }
                }
            }
        }
    }
}
