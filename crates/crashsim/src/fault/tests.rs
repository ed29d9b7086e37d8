use super::*;
use crate::SimDevice;

fn device() -> FaultDevice {
    FaultDevice::new(Arc::new(SimDevice::unrecorded(8)))
}

fn errno(result: io::Result<()>) -> Option<i32> {
    result.err().map(|e| e.raw_os_error().expect("a number"))
}

fn first_byte(device: &FaultDevice, block: u64) -> u8 {
    let mut buf = [0; BLOCK];
    device.inner.read(block, &mut buf).unwrap();
    buf[0]
}

#[test]
fn the_nth_call_of_a_kind_fails_once_and_does_nothing() {
    let device = device();
    device.flush().unwrap();
    device.fail(FaultOp::Write, 2, Fault::Errno(libc::ENOSPC), Repeat::Once);
    assert_eq!(errno(device.write(0, &[1; BLOCK])), None);
    device.flush().unwrap();
    device.read(0, &mut [0; BLOCK]).unwrap();
    assert_eq!(errno(device.write(1, &[1; BLOCK])), Some(libc::ENOSPC));
    assert_eq!(errno(device.write(2, &[1; BLOCK])), None);
    assert_eq!([0, 1, 2].map(|block| first_byte(&device, block)), [1, 0, 1]);
    assert_eq!(device.calls(FaultOp::Write), 3);
    assert_eq!(
        (device.calls(FaultOp::Flush), device.calls(FaultOp::Read)),
        (2, 1)
    );
}

#[test]
fn a_lasting_fault_lasts_until_healed() {
    let device = device();
    device.fail(FaultOp::Flush, 1, Fault::Errno(libc::EIO), Repeat::Forever);
    device.fail(FaultOp::Discard, 1, Fault::Short, Repeat::Forever);
    for _ in 0..3 {
        assert_eq!(errno(device.flush()), Some(libc::EIO));
        assert_eq!(errno(device.discard(0, 1)), Some(libc::EIO));
    }
    device.heal();
    device.flush().unwrap();
    device.discard(0, 1).unwrap();
}

#[test]
fn a_short_transfer_does_the_first_half() {
    let device = device();
    device.fail(FaultOp::Write, 1, Fault::Short, Repeat::Once);
    assert_eq!(errno(device.write(0, &[1; 4 * BLOCK])), Some(libc::EIO));
    assert_eq!(
        [0, 1, 2, 3].map(|block| first_byte(&device, block)),
        [1, 1, 0, 0]
    );
    device.fail(FaultOp::Read, 1, Fault::Short, Repeat::Once);
    let mut buf = [9; 2 * BLOCK];
    assert_eq!(errno(device.read(0, &mut buf)), Some(libc::EIO));
    assert_eq!((buf[0], buf[BLOCK]), (1, 9));
    let bufs: [&[u8]; 1] = [&[2; BLOCK]];
    let runs = [4, 5].map(|block| WriteRun { block, bufs: &bufs });
    device.fail(FaultOp::Write, 1, Fault::Short, Repeat::Once);
    assert_eq!(errno(device.write_many(&runs)), Some(libc::EIO));
    assert_eq!([4, 5].map(|block| first_byte(&device, block)), [2, 0]);
    let (mut a, mut b) = ([9; BLOCK], [9; BLOCK]);
    let mut reads = [
        ReadRun {
            block: 4,
            buf: &mut a,
        },
        ReadRun {
            block: 4,
            buf: &mut b,
        },
    ];
    device.fail(FaultOp::Read, 1, Fault::Short, Repeat::Once);
    assert_eq!(errno(device.read_many(&mut reads)), Some(libc::EIO));
    assert_eq!((a[0], b[0]), (2, 9));
}

#[test]
fn a_held_up_call_has_done_nothing_and_goes_on() {
    let device = device();
    let stall = device.stall(FaultOp::Write, 2);
    device.write(0, &[1; BLOCK]).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| device.write(1, &[2; BLOCK]));
        stall.reached();
        assert_eq!(first_byte(&device, 1), 0);
        // Others are not held up.
        device.write(2, &[3; BLOCK]).unwrap();
        device.flush().unwrap();
        stall.release();
        writer.join().unwrap().unwrap();
    });
    assert_eq!([1, 2].map(|block| first_byte(&device, block)), [2, 3]);
    // Released before it has come; healed while it is held up; never come.
    device.stall(FaultOp::Flush, 1).release();
    device.flush().unwrap();
    let stall = device.stall(FaultOp::Flush, 1);
    std::thread::scope(|s| {
        s.spawn(|| device.flush().unwrap());
        stall.reached();
        device.heal();
    });
    assert!(!device.stall(FaultOp::Discard, 1).reached_unless(|| true));
}

#[test]
fn without_a_fault_everything_is_passed_on() {
    let device = device();
    assert_eq!(device.blocks(), 8);
    assert!(!device.is_read_only() && device.describe().contains("simulated"));
    assert_eq!(
        device.write(8, &[0; BLOCK]).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        device.read(0, &mut [0; 5]).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    device.write(0, &[]).unwrap();
    device.write_many(&[]).unwrap();
}
