//! Stream capture and graphs.

use std::ffi::c_char;

use crate::{
    capture,
    graphs::{self, CaptureStatus},
    guard::{Driver, Runtime},
    machine,
    status::{Outcome, Status},
    streams, versions,
};
use memfit_abi::{In, Out, Ptr, entry_points};

/// `cudaGraphInstantiateParams`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InstantiateParameters {
    flags: u64,
    upload_stream: u64,
    error_node: u64,
    result: i32,
}

/// Destinations of a capture query's results. All but the status may be null.
struct CaptureInfo {
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    edges: Out<u64>,
    count: Out<u64>,
}

fn capture_info(stream: u64, info: &CaptureInfo) -> Outcome {
    if info.status.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let (status, id, graph) = capture::stream_status(&streams::resolve(stream)?);
    info.status.set(status as i32);
    if status == CaptureStatus::Active {
        info.id.set(id);
        info.graph.set(graph);
        // Nodes have no dependencies here.
        info.dependencies.set(0);
        info.edges.set(0);
        info.count.set(0);
    }
    Ok(())
}

fn instantiate(executable: Out<u64>, graph: u64) -> Outcome {
    if executable.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    machine::current_context()?;
    executable.set(graphs::instantiate(graph)?);
    Ok(())
}

/// Writes handles as CUDA does: with a null array, only their number.
fn put_nodes(nodes: &[u64], array: Out<u64>, count: Out<u64>) -> Outcome {
    let room = count.get().ok_or(Status::INVALID_VALUE)? as usize;
    if array.is_null() {
        count.set(nodes.len() as u64);
        return Ok(());
    }
    for index in 0..room {
        array.set_at(index, nodes.get(index).copied().unwrap_or(0));
    }
    count.set(nodes.len().min(room) as u64);
    Ok(())
}

entry_points! { Runtime, Driver;
    fn cudaStreamBeginCapture(stream: u64, mode: i32),
    fn cuStreamBeginCapture_v2() {
        capture::begin(stream, mode, None)
    }

    fn cudaStreamBeginCaptureToGraph(
        stream: u64, graph: u64, _dependencies: In<u64>, _edges: In<u64>, _count: u64, mode: i32,
    ),
    fn cuStreamBeginCaptureToGraph() {
        capture::begin(stream, mode, Some(graph))
    }

    fn cudaStreamEndCapture(stream: u64, graph: Out<u64>),
    fn cuStreamEndCapture() {
        if graph.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        graph.set(0);
        graph.set(capture::end(stream)?);
        Ok(())
    }

    fn cudaStreamIsCapturing(stream: u64, status: Out<i32>),
    fn cuStreamIsCapturing() {
        if status.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        status.set(capture::stream_status(&streams::resolve(stream)?).0 as i32);
        Ok(())
    }

    fn cudaStreamGetCaptureInfo(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>,
        count: Out<u64>,
    ) {
        let none = Out::nowhere();
        let info = CaptureInfo { status, id, graph, dependencies, edges, count };
        // CUDA 12's version has three parameters; the remaining registers hold garbage.
        let short = CaptureInfo { graph: none, dependencies: none, edges: none, count: none, ..info };
        capture_info(stream, if versions::major() >= 13 { &info } else { &short })
    }

    fn cudaStreamGetCaptureInfo_v2(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<u64>,
    ),
    fn cuStreamGetCaptureInfo_v2() {
        capture_info(stream, &CaptureInfo { status, id, graph, dependencies, edges: Out::nowhere(), count })
    }

    fn cudaStreamGetCaptureInfo_v3(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>,
        count: Out<u64>,
    ),
    fn cuStreamGetCaptureInfo_v3() {
        capture_info(stream, &CaptureInfo { status, id, graph, dependencies, edges, count })
    }

    fn cudaStreamUpdateCaptureDependencies(stream: u64),
    fn cuStreamUpdateCaptureDependencies() {
        match capture::stream_status(&streams::resolve(stream)?).0 {
            CaptureStatus::Active => Ok(()),
            _ => Err(Status::ILLEGAL_STATE),
        }
    }

    fn cudaStreamUpdateCaptureDependencies_v2(stream: u64),
    fn cuStreamUpdateCaptureDependencies_v2() {
        match capture::stream_status(&streams::resolve(stream)?).0 {
            CaptureStatus::Active => Ok(()),
            _ => Err(Status::ILLEGAL_STATE),
        }
    }

    fn cudaGraphCreate(graph: Out<u64>, flags: u32),
    fn cuGraphCreate() {
        if graph.is_null() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        graph.set(graphs::create());
        Ok(())
    }

    fn cudaGraphDestroy(graph: u64),
    fn cuGraphDestroy() {
        graphs::destroy(graph)
    }

    fn cudaGraphAddEmptyNode(node: Out<u64>, graph: u64, _dependencies: In<u64>, _count: u64),
    fn cuGraphAddEmptyNode() {
        if node.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        node.set(graphs::add_empty_node(graph)?);
        Ok(())
    }

    fn cudaGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<u64>),
    fn cuGraphGetNodes() {
        put_nodes(&graphs::nodes(graph)?, nodes, count)
    }

    fn cudaGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<u64>),
    fn cuGraphGetRootNodes() {
        put_nodes(&graphs::nodes(graph)?, nodes, count)
    }

    fn cudaGraphNodeGetDependencies(_node: u64, _nodes: Out<u64>, edges_or_count: Out<u64>, count: Out<u64>) {
        // CUDA 12's version has no edges: its count is where CUDA 13 has them.
        let count = if versions::major() >= 13 { count } else { edges_or_count };
        if count.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        count.set(0);
        Ok(())
    }

    fn cudaGraphNodeGetDependencies_v2(
        _node: u64, _nodes: Out<u64>, _edges: Out<u64>, count: Out<u64>,
    ),
    fn cuGraphNodeGetDependencies_v2() {
        if count.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        count.set(0);
        Ok(())
    }

    fn cudaGraphNodeGetType(_node: u64, kind: Out<i32>),
    fn cuGraphNodeGetType() {
        if kind.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // The type of a node is not stored: each is reported as a kernel.
        kind.set(0);
        Ok(())
    }

    fn cudaGraphDebugDotPrint(graph: u64, path: In<c_char>, _flags: u32),
    fn cuGraphDebugDotPrint() {
        let count = graphs::nodes(graph)?.len();
        let path = path.text().ok_or(Status::INVALID_VALUE)?;
        let nodes: Vec<String> = (0..count).map(|node| format!("  node{node};\n")).collect();
        std::fs::write(path, format!("digraph {{\n{}}}\n", nodes.concat())).map_err(|_| Status::OPERATING_SYSTEM)
    }

    fn cudaGraphInstantiate(executable: Out<u64>, graph: u64) {
        instantiate(executable, graph)
    }

    fn cudaGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, _flags: u64),
    fn cuGraphInstantiateWithFlags() {
        instantiate(executable, graph)
    }

    fn cudaGraphInstantiateWithParams(executable: Out<u64>, graph: u64, parameters: Out<InstantiateParameters>),
    fn cuGraphInstantiateWithParams() {
        let mut answer = parameters.get().ok_or(Status::INVALID_VALUE)?;
        instantiate(executable, graph)?;
        (answer.error_node, answer.result) = (0, 0);
        parameters.set(answer);
        Ok(())
    }

    fn cudaGraphUpload(executable: u64, stream: u64),
    fn cuGraphUpload() {
        streams::resolve(stream)?;
        graphs::check_executable(executable)
    }

    fn cudaGraphLaunch(executable: u64, stream: u64),
    fn cuGraphLaunch() {
        streams::resolve(stream)?;
        capture::launch(executable, stream)
    }

    fn cudaGraphExecDestroy(executable: u64),
    fn cuGraphExecDestroy() {
        graphs::destroy_executable(executable)
    }

    fn cudaUserObjectCreate(
        object: Out<u64>, address: Ptr, destroy: Option<extern "C" fn(Ptr)>, references: u32, flags: u32,
    ),
    fn cuUserObjectCreate() {
        let destroy = destroy.ok_or(Status::INVALID_VALUE)?;
        if object.is_null() || references == 0 || flags != 1 {
            return Err(Status::INVALID_VALUE);
        }
        object.set(graphs::create_object(address, destroy, references));
        Ok(())
    }

    fn cudaUserObjectRetain(object: u64, count: u32),
    fn cuUserObjectRetain() {
        graphs::retain(object, count)
    }

    fn cudaUserObjectRelease(object: u64, count: u32),
    fn cuUserObjectRelease() {
        graphs::release(object, count)
    }

    fn cudaGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32),
    fn cuGraphRetainUserObject() {
        graphs::graph_retain(graph, object, count, flags & 1 != 0)
    }

    fn cudaGraphReleaseUserObject(graph: u64, object: u64, count: u32),
    fn cuGraphReleaseUserObject() {
        graphs::graph_release(graph, object, count)
    }
}
