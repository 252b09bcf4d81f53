//! Minimal reader of SQLite 3 files that scans whole tables: pages, table b-trees, records, overflow pages.

use std::collections::HashSet;

/// Maximum depth of a b-tree. A deeper one is damaged: even terabytes need fewer levels.
const MAX_DEPTH: u32 = 24;
/// Longest record that is assembled from overflow pages.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Error while a database is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SqliteError {
    #[error("it does not begin like a SQLite 3 file")]
    Header,
    #[error("page {page} of {pages}, at byte {byte}, is missing: the file is truncated or damaged")]
    NoPage { page: u32, pages: u32, byte: u64 },
    #[error("page {page}, at byte {byte}, is not valid: {why}")]
    Page { page: u32, byte: u64, why: &'static str },
    #[error("its texts are in UTF-16, which Nsight Systems does not write")]
    Encoding,
    #[error("a table has more than {0} rows")]
    TooMany(usize),
}

type Result<T> = std::result::Result<T, SqliteError>;

/// Value in a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell<'file> {
    Null,
    Integer(i64),
    Float(f64),
    Text(std::borrow::Cow<'file, [u8]>),
    Blob,
}

impl Cell<'_> {
    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i64),
            _ => None,
        }
    }
}

/// Database file in memory.
pub(super) struct Database<'file> {
    bytes: &'file [u8],
    page_size: usize,
    /// Usable bytes of a page; some writers reserve space at its end.
    usable: usize,
}

impl<'file> Database<'file> {
    pub(super) fn open(bytes: &'file [u8]) -> Result<Self> {
        if !bytes.starts_with(b"SQLite format 3\0") || bytes.len() < 100 {
            return Err(SqliteError::Header);
        }
        let page_size = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            1 => 65536,
            size => usize::from(size),
        };
        let usable = page_size.saturating_sub(usize::from(bytes[20]));
        if !page_size.is_power_of_two() || page_size < 512 || usable < 480 {
            return Err(SqliteError::Header);
        }
        // Text encoding; 1 is UTF-8.
        if be32(bytes, 56) > 1 {
            return Err(SqliteError::Encoding);
        }
        Ok(Self { bytes, page_size, usable })
    }

    fn pages(&self) -> u32 {
        (self.bytes.len() / self.page_size) as u32
    }

    /// Returns the offset of a page in the file.
    fn page_offset(&self, page: u32) -> u64 {
        u64::from(page.saturating_sub(1)) * self.page_size as u64
    }

    fn wrong(&self, page: u32, why: &'static str) -> SqliteError {
        SqliteError::Page { page, byte: self.page_offset(page), why }
    }

    fn page(&self, page: u32) -> Result<&'file [u8]> {
        let missing = SqliteError::NoPage { page, pages: self.pages(), byte: self.page_offset(page) };
        let start = (page.checked_sub(1).ok_or(missing.clone())? as usize).saturating_mul(self.page_size);
        self.bytes.get(start..start.saturating_add(self.page_size)).ok_or(missing)
    }

    /// Passes the rows of a table to `show`, with these columns in this order. Returns `false` if there is no
    /// such table.
    pub(super) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        most: usize,
        mut show: impl FnMut(&[Cell<'file>]),
    ) -> Result<bool> {
        let Some((root, sql)) = self.find(table)? else { return Ok(false) };
        let (names, key) = column_names(&sql);
        let places: Vec<Option<usize>> = columns
            .iter()
            .map(|column| names.iter().position(|name| name.eq_ignore_ascii_case(column)))
            .collect();
        let mut row = Vec::with_capacity(columns.len());
        self.walk(root, most, &mut |id, record: &Record<'file>| {
            row.clear();
            row.extend(places.iter().map(|place| match place {
                // A column that is the rowid is stored as NULL.
                Some(place) if Some(*place) == key => Cell::Integer(id),
                Some(place) => record.cell(*place),
                None => Cell::Null,
            }));
            show(&row);
        })?;
        Ok(true)
    }

    /// Returns the root page of a table and its `CREATE` statement.
    fn find(&self, table: &str) -> Result<Option<(u32, String)>> {
        let mut found = None;
        self.walk(1, 100_000, &mut |_, record: &Record<'file>| {
            let text = |column: usize| match record.cell(column) {
                Cell::Text(text) => String::from_utf8_lossy(&text).into_owned(),
                _ => String::new(),
            };
            if text(0) == "table" && text(1).eq_ignore_ascii_case(table) && found.is_none() {
                let root = record.cell(3).as_i64().and_then(|root| u32::try_from(root).ok());
                found = root.map(|root| (root, text(4)));
            }
        })?;
        Ok(found)
    }

    /// Traverses a table's b-tree in row order.
    fn walk(&self, root: u32, most: usize, show: &mut impl FnMut(i64, &Record<'file>)) -> Result<()> {
        // Each page belongs to one tree once; a cycle would never end.
        let mut seen = HashSet::new();
        let mut waiting = vec![(root, 0)];
        let mut rows = 0;
        while let Some((number, depth)) = waiting.pop() {
            let wrong = |why| self.wrong(number, why);
            if depth > MAX_DEPTH || !seen.insert(number) {
                return Err(wrong("it lies within itself"));
            }
            let page = self.page(number)?;
            let header = if number == 1 { 100 } else { 0 };
            let kind = page[header];
            let cells = usize::from(be16(page, header + 3));
            let first = header + if kind == 5 { 12 } else { 8 };
            let place = |cell: usize| usize::from(be16(page, first + 2 * cell));
            if first + 2 * cells > self.usable {
                return Err(wrong("it claims more rows than it has room for"));
            }
            match kind {
                5 => {
                    // Children are pushed in reverse, since the stack pops the last first.
                    waiting.push((be32(page, header + 8), depth + 1));
                    for cell in (0..cells).rev() {
                        let child = place(cell);
                        if child + 4 > page.len() {
                            return Err(wrong("a child lies outside of it"));
                        }
                        waiting.push((be32(page, child), depth + 1));
                    }
                }
                13 => {
                    for cell in 0..cells {
                        rows += 1;
                        if rows > most {
                            return Err(SqliteError::TooMany(most));
                        }
                        let (id, payload) = self.payload(number, page, place(cell))?;
                        show(id, &Record::parse(payload).ok_or(wrong("a row is damaged"))?);
                    }
                }
                _ => return Err(wrong("it is no page of a table")),
            }
        }
        Ok(())
    }

    /// Returns a row's id and payload, which may continue on overflow pages.
    fn payload(
        &self,
        number: u32,
        page: &'file [u8],
        start: usize,
    ) -> Result<(i64, std::borrow::Cow<'file, [u8]>)> {
        let wrong = |why| self.wrong(number, why);
        let mut rest = page.get(start..).ok_or(wrong("a row lies outside of it"))?;
        let length = varint(&mut rest).ok_or(wrong("a row is truncated"))?;
        let id = varint(&mut rest).ok_or(wrong("a row is truncated"))?.cast_signed();
        let local = self.local(length);
        let here = rest.get(..local).ok_or(wrong("a row is truncated"))?;
        if local as u64 == length {
            return Ok((id, here.into()));
        }
        if length > MAX_RECORD_BYTES.min(self.bytes.len() as u64) {
            return Err(wrong("a row is longer than the file"));
        }
        let mut whole = here.to_vec();
        let mut next =
            rest.get(local..local + 4).map(|bytes| be32(bytes, 0)).ok_or(wrong("a row is truncated"))?;
        while (whole.len() as u64) < length {
            let overflow = self.page(next)?;
            let part = (length as usize - whole.len()).min(self.usable - 4);
            whole.extend_from_slice(&overflow[4..4 + part]);
            next = be32(overflow, 0);
        }
        Ok((id, whole.into()))
    }

    /// Bytes of a payload of this length that lie in its own page, by the formula of the file format.
    fn local(&self, length: u64) -> usize {
        let usable = self.usable as u64;
        let most = usable - 35;
        if length <= most {
            return length as usize;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let fitting = least + (length - least) % (usable - 4);
        (if fitting <= most { fitting } else { least }) as usize
    }
}

/// Payload of a row and the offsets of its columns.
struct Record<'file> {
    bytes: std::borrow::Cow<'file, [u8]>,
    /// Type and offset of each column.
    columns: Vec<(u64, usize)>,
}

impl<'file> Record<'file> {
    fn parse(bytes: std::borrow::Cow<'file, [u8]>) -> Option<Self> {
        let mut rest = &bytes[..];
        let header = usize::try_from(varint(&mut rest)?).ok().filter(|header| *header <= bytes.len())?;
        let mut types = bytes.get(bytes.len() - rest.len()..header)?;
        let (mut columns, mut place) = (Vec::new(), header);
        while !types.is_empty() {
            let kind = varint(&mut types)?;
            let length = length_of(kind)?;
            columns.push((kind, place));
            place = place.checked_add(length).filter(|end| *end <= bytes.len())?;
        }
        Some(Self { bytes, columns })
    }

    fn cell(&self, column: usize) -> Cell<'file> {
        let Some(&(kind, place)) = self.columns.get(column) else { return Cell::Null };
        let length = length_of(kind).unwrap_or(0);
        let Some(bytes) = self.bytes.get(place..place + length) else { return Cell::Null };
        match kind {
            1..=6 => Cell::Integer(signed(bytes)),
            7 => Cell::Float(f64::from_bits(signed(bytes).cast_unsigned())),
            8 => Cell::Integer(0),
            9 => Cell::Integer(1),
            13.. if kind % 2 == 1 => Cell::Text(bytes.to_vec().into()),
            12.. => Cell::Blob,
            _ => Cell::Null,
        }
    }
}

/// Bytes of a column of a serial type.
fn length_of(kind: u64) -> Option<usize> {
    match kind {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(kind as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        _ => usize::try_from((kind - 12) / 2).ok(),
    }
}

/// Decodes a signed big-endian integer.
fn signed(bytes: &[u8]) -> i64 {
    let start = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
    bytes.iter().fold(start, |number, byte| number << 8 | i64::from(*byte))
}

/// Decodes a variable-length integer of up to nine bytes: big-endian, seven bits in each byte but the ninth.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for place in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if place == 8 {
            return Some(value << 8 | u64::from(*byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |part| u16::from_be_bytes([part[0], part[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |part| u32::from_be_bytes([part[0], part[1], part[2], part[3]]))
}

/// Returns the column names of a `CREATE TABLE` statement, and which of them is the rowid.
fn column_names(sql: &str) -> (Vec<String>, Option<usize>) {
    let list = sql.split_once('(').map_or("", |(_, list)| list);
    let (mut names, mut key, mut depth, mut start) = (Vec::new(), None, 0_i32, 0);
    let mut take = |part: &str| {
        let part = part.trim();
        let quoted = part.starts_with(['"', '`', '[', '\'']);
        let name = part.trim_start_matches(['"', '`', '[', '\'']);
        let end = if quoted { name.find(['"', '`', ']', '\'']) } else { name.find(char::is_whitespace) };
        let (name, rest) = name.split_at(end.unwrap_or(name.len()));
        // Table constraints follow the columns.
        let constraint = ["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"];
        if name.is_empty() || (!quoted && constraint.iter().any(|word| name.eq_ignore_ascii_case(word))) {
            return;
        }
        let rest = rest.to_ascii_uppercase();
        if rest.contains("INTEGER") && rest.contains("PRIMARY KEY") {
            key = Some(names.len());
        }
        names.push(name.to_owned());
    };
    for (at, character) in list.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => {
                take(&list[start..at]);
                break;
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                take(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    (names, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_names_are_read_from_the_create_statement() {
        let sql = "CREATE TABLE \"T\" (start INTEGER NOT NULL, \"end\" INTEGER, id INTEGER NOT NULL PRIMARY KEY, n DECIMAL(1,2) DEFAULT (3), UNIQUE (id), CHECK (n > 1))";
        let (names, key) = column_names(sql);
        assert_eq!(names, ["start", "end", "id", "n"]);
        assert_eq!(key, Some(2));
        assert_eq!(column_names("nothing").0.len(), 0);
    }
}
