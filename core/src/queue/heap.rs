//! The two steps of a binary heap. Its root comes before all others by `before`, which is given since two queues order differently.

/// Moves the last element towards the root while it comes before its parent.
#[inline]
pub(super) fn sift_up<T: Copy>(heap: &mut [T], before: impl Fn(&T, &T) -> bool) {
    let mut at = heap.len() - 1;
    let last = heap[at];
    while at > 0 {
        let parent = (at - 1) / 2;
        if !before(&last, &heap[parent]) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = last;
}

/// Puts an element in place of the root and restores the heap.
#[inline]
pub(super) fn sift_down<T: Copy>(heap: &mut [T], new: T, before: impl Fn(&T, &T) -> bool) {
    let mut at = 0;
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            break;
        }
        if child + 1 < heap.len() && before(&heap[child + 1], &heap[child]) {
            child += 1;
        }
        if !before(&heap[child], &new) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = new;
}
