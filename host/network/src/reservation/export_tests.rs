use super::*;
use crate::reservation::test_rows::five_rows;

fn text(rows: &[Row]) -> String {
    rows.iter().map(|r| line(r) + "\n").collect()
}

#[test]
fn what_is_written_is_read_back() {
    let rows = five_rows();
    let lines = read(text(&rows).as_bytes()).unwrap();
    assert_eq!((lines.rows, lines.torn), (rows, None));
}

#[test]
fn a_torn_last_record_is_dropped_and_told() {
    let rows = five_rows();
    let whole = text(&rows);
    let last = line(&rows[4]).len() + 1;
    for cut in 1..last {
        let lines = read(&whole.as_bytes()[..whole.len() - cut]).unwrap();
        if cut == 1 {
            assert_eq!((lines.rows.len(), lines.torn), (5, None), "only its newline is missing");
        } else {
            assert_eq!(
                (lines.rows.len(), lines.torn),
                (4, Some(TornLine { line: 5, length: last - cut })),
                "cut {cut}"
            );
        }
    }
}

#[test]
fn a_flipped_byte_is_damage_by_its_line() {
    let rows = five_rows();
    let whole = text(&rows);
    let start = line(&rows[0]).len() + 1;
    for at in 0..line(&rows[1]).len() {
        let mut bytes = whole.clone().into_bytes();
        bytes[start + at] ^= 1;
        let damage = read(&bytes).expect_err(&format!("byte {at} of line 2 was flipped unseen"));
        // A byte made a newline cuts the line in two.
        assert!(damage.line == 2, "{damage}");
    }
}

#[test]
fn lines_in_another_order_are_damage() {
    let mut rows = five_rows();
    rows.swap(1, 2);
    assert_eq!(read(text(&rows).as_bytes()).unwrap_err().line, 2);
    let mut rows = five_rows();
    rows.remove(1);
    let damage = read(text(&rows).as_bytes()).unwrap_err();
    assert_eq!(damage.to_string(), "line 2: it is number 3 of its stream, number 1 was before it");
}
