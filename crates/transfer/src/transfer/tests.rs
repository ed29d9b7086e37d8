use super::*;
use std::io::Read;

fn remaining(transfer: &mut Transfer<'_>) -> Vec<Vec<u8>> {
    match transfer.slices() {
        Slices::Read(slices) => slices.iter().map(|s| s.to_vec()).collect(),
        Slices::Write(slices) => slices.iter().map(|s| s.to_vec()).collect(),
        Slices::From(_) => unreachable!("nobody looks at these"),
    }
}

#[test]
fn a_short_transfer_goes_on_where_it_stopped() {
    for cut in 1..10 {
        let mut transfer = Transfer::write(100, &[b"abc", b"def", b"ghij"]);
        transfer.advance(cut).unwrap();
        assert_eq!(transfer.off(), 100 + cut as u64);
        assert_eq!(remaining(&mut transfer).concat(), b"abcdefghij"[cut..]);
        assert!(!transfer.is_done());
        transfer.advance(10 - cut).unwrap();
        assert!(transfer.is_done());
    }
}

#[test]
fn a_short_read_goes_on_where_it_stopped() {
    let mut buf = *b"0123456789";
    let mut transfer = Transfer::read(0, &mut buf);
    transfer.advance(4).unwrap();
    assert_eq!(remaining(&mut transfer), [b"456789"]);
    assert_eq!(transfer.off(), 4);
}

#[test]
fn no_progress_is_an_error() {
    let mut buf = [0; 8];
    let error = Transfer::read(0, &mut buf).advance(0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let error = Transfer::write(0, &[b"x"]).advance(0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[test]
fn plain_transfers_move_all_buffers() {
    let mut file = tempfile::tempfile().unwrap();
    Transfer::write(3, &[b"abc", b"", b"defg"])
        .run(file.as_fd())
        .unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, b"\0\0\0abcdefg");
    let mut buf = [0; 4];
    Transfer::read(5, &mut buf).run(file.as_fd()).unwrap();
    assert_eq!(&buf, b"cdef");
    let error = Transfer::read(8, &mut buf).run(file.as_fd()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn what_is_written_where_it_lies_goes_on_where_it_stopped() {
    let at = |off, len| InPlace::of(&b"abcdefghij"[off..off + len]);
    for cut in 0..10 {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![at(0, 3), at(3, 0), at(3, 3), at(6, 4)];
        let mut transfer = Transfer::write_from(100, bytes);
        if cut > 0 {
            transfer.advance(cut).unwrap();
        }
        assert_eq!(transfer.off(), 100 + cut as u64);
        transfer.run(file.as_fd()).unwrap();
        assert!(transfer.is_done());
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content[100 + cut..], b"abcdefghij"[cut..]);
    }
    let error = Transfer::write_from(0, vec![at(0, 1)])
        .advance(0)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}
