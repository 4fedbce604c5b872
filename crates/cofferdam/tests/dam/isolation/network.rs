//! Networks and sockets.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

use super::{holds, literal, marker, public_dir};
use crate::support::World;

#[test]
fn no_listener_of_the_host_is_reached_and_no_name_resolved() {
    let world = World::new();
    let four = TcpListener::bind("127.0.0.1:0").expect("listen");
    let any = TcpListener::bind("0.0.0.0:0").expect("listen");
    let six = TcpListener::bind("[::1]:0").expect("listen");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
    TcpStream::connect(four.local_addr().expect("address")).expect("the host reaches it");
    TcpStream::connect(six.local_addr().expect("address")).expect("the host reaches it");
    for listener in [&four, &six] {
        listener.accept().expect("accept");
        listener.set_nonblocking(true).expect("nonblocking");
    }
    udp.set_nonblocking(true).expect("nonblocking");
    let port = |listener: &TcpListener| listener.local_addr().expect("address").port();
    for options in [&[][..], &["--nested"]] {
        holds(
            &world,
            options,
            &format!(
                "
assert [name for _, name in socket.if_nameindex()] == ['lo'], socket.if_nameindex()
no = errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH
for address in ('127.0.0.1', {four}), ('::1', {six}), ('127.0.0.1', {any}), ('192.0.2.1', 80), ('2001:db8::1', 80), ('169.254.169.254', 80):
    refused(address, lambda: socket.create_connection(address), *no)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.sendto(b'x', ('127.0.0.1', {udp}))
refused('udp', lambda: sender.sendto(b'x', ('192.0.2.1', 53)), *no)
refused('resolve', lambda: socket.getaddrinfo('example.com', 80))
assert not os.path.exists('/etc/resolv.conf')
assert len(open('/proc/net/route').readlines()) == 1
# Its own loopback works.
server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())
server = socket.create_server(('::1', 0), family=socket.AF_INET6); socket.create_connection(server.getsockname()[:2])
",
                four = port(&four),
                six = port(&six),
                any = port(&any),
                udp = udp.local_addr().expect("address").port(),
            ),
        );
    }
    assert!(four.accept().is_err() && six.accept().is_err());
    assert!(udp.recv(&mut [0; 4]).is_err());
}

/// What reaches past a network namespace, or needs a capability.
#[test]
fn sockets_of_other_families_are_refused() {
    let world = World::new();
    for options in [&[][..], &["--nested"], &["--net", "open"]] {
        holds(
            &world,
            options,
            "
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET:
    refused('vsock', lambda: socket.socket(40, kind), errno.EAFNOSUPPORT)
    refused('qrtr', lambda: socket.socket(42, kind), errno.EAFNOSUPPORT)
    refused('vsock', lambda: socket.socketpair(40, kind))
for kind in socket.SOCK_RAW, socket.SOCK_DGRAM:
    refused('packet', lambda: socket.socket(17, kind), errno.EPERM)
refused('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), errno.EPERM)
refused('audit', lambda: socket.socket(16, socket.SOCK_RAW, 9).bind((0, 1)), errno.EPERM)
error_is('high half', call_socket(0xdead00000000 | 40), errno.EAFNOSUPPORT)
"
            .replace("call_socket(", "(lambda family: libc.syscall(ctypes.c_long(41 if X86 else 198), ctypes.c_ulong(family), 1, 0) and -ctypes.get_errno())(")
            .as_str(),
        );
    }
}

/// Abstract sockets belong to a network namespace; with the host's network it is
/// Landlock (ABI 6) that keeps a task away from them.
#[test]
fn abstract_sockets_of_the_host_are_not_reached() {
    let world = World::new();
    let (stream, datagram) = (marker("stream"), marker("datagram"));
    let address = |name: &String| SocketAddr::from_abstract_name(name).expect("address");
    let listener = UnixListener::bind_addr(&address(&stream)).expect("listen");
    let receiver = UnixDatagram::bind_addr(&address(&datagram)).expect("bind");
    UnixStream::connect_addr(&address(&stream)).expect("the host reaches it");
    listener.accept().expect("accept");
    listener.set_nonblocking(true).expect("nonblocking");
    receiver.set_nonblocking(true).expect("nonblocking");
    for options in [&[][..], &["--nested"], &["--net", "open"], &["--net", "open", "--nested"]] {
        holds(
            &world,
            options,
            &format!(
                "
no = errno.ECONNREFUSED, errno.EPERM
refused('stream', lambda: socket.socket(socket.AF_UNIX).connect('\\0{stream}'), *no)
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
refused('send', lambda: sender.sendto(b'x', '\\0{datagram}'), *no)
refused('connect', lambda: sender.connect('\\0{datagram}'), *no)
own = socket.socket(socket.AF_UNIX); own.bind('\\0own-{stream}'); own.listen()
socket.socket(socket.AF_UNIX).connect('\\0own-{stream}')
"
            ),
        );
    }
    assert!(listener.accept().is_err());
    assert!(receiver.recv(&mut [0; 4]).is_err());
}

#[test]
fn sockets_of_the_host_with_a_path_are_not_reached() {
    let world = World::new();
    let tmp = public_dir("/tmp");
    let places = [world.dir(), &world.home(), &world.repo, &world.path(".git"), tmp.path()]
        .map(ToOwned::to_owned);
    let sockets: Vec<_> = places
        .iter()
        .map(|place| {
            let path = place.join("socket");
            let listener = UnixListener::bind(&path).expect("listen");
            listener.set_nonblocking(true).expect("nonblocking");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(&path, mode).expect("chmod");
            (path, listener)
        })
        .collect();
    let list: Vec<String> = sockets.iter().map(|(path, _)| literal(path)).collect();
    for options in [&[][..], &["--net", "open"]] {
        holds(
            &world,
            options,
            &format!(
                "
for path in [{}]:
    refused(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
",
                list.join(", ")
            ),
        );
    }
    for (path, listener) in sockets {
        assert!(listener.accept().is_err(), "{}", path.display());
    }
}
