//! Colors of the console's pixel values.

/// Brightness of each pixel value in one plane: gray, or one of red, green, blue.
pub(super) type Look = [u8; 256];

/// Colors of the 256 pixel values.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Colors {
    pub(super) rgb: [[u8; 3]; 256],
    pub(super) gray: Look,
}

impl Colors {
    /// Converts the library's own table: pairs of a color (`0x00RRGGBB`) and its gray, three times
    /// in one word.
    pub(super) fn new(words: &[u32; 256]) -> Colors {
        Colors {
            rgb: words.map(|word| [(word >> 16) as u8, (word >> 8) as u8, word as u8]),
            // The library reads the word after the color's word. After the last one it finds another
            // table's black, as ale-py does; AirRaid has such pixels.
            gray: std::array::from_fn(|i| words.get(i + 1).map_or(0, |&word| word as u8)),
        }
    }
}
