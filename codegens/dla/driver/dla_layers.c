/* Names of layers, and events. */
#include "dla_layers.h"
#include "dla_program.h"

#include <string.h>

#define HEADER_BYTES 16u
#define LAYERS_VERSION 1u

const char *dla_check_layers(const byoc_blob *blob, dla_layers *layers) {
    const uint8_t *bytes = blob->data;
    uint64_t nodes = 0, texts = 0;
    if (blob->bytes < HEADER_BYTES || memcmp(bytes, "DLAL", 4) != 0 || dla_read_word(bytes + 4) != LAYERS_VERSION) {
        return "layers.bin is not of version 1";
    }
    layers->count = dla_read_word(bytes + 8);
    layers->node_count = dla_read_word(bytes + 12);
    if (layers->count > (blob->bytes - HEADER_BYTES) / 4) {
        return "layers.bin breaks off";
    }
    for (uint32_t i = 0; i < layers->count; i++) {
        nodes += dla_read_word(bytes + HEADER_BYTES + (size_t)i * 4);
    }
    for (size_t place = HEADER_BYTES + (size_t)layers->count * 4; place < blob->bytes; place++) {
        texts += bytes[place] == 0;
    }
    if (nodes != layers->node_count || texts != nodes + layers->count ||
        (texts && bytes[blob->bytes - 1] != 0)) {
        return "layers.bin has other names than it says";
    }
    layers->file = bytes;
    return NULL;
}

uint64_t dla_layer_bytes(const dla_layers *layers) {
    uint64_t for_layer = sizeof(byoc_event) + sizeof(char *) + 2 * sizeof(uint32_t);
    return layers->file ? layers->count * for_layer + layers->node_count * (uint64_t)sizeof(char *) + 16 : 0;
}

void dla_place_layers(const byoc_blob *blob, dla_layers *layers, void *memory) {
    if (!layers->file) {
        return;
    }
    const char *text = (const char *)blob->data + HEADER_BYTES + (size_t)layers->count * 4;
    layers->events = memory;
    layers->names = (const char **)(void *)(layers->events + layers->count);
    layers->nodes = layers->names + layers->count;
    layers->first_nodes = (uint32_t *)(void *)(layers->nodes + layers->node_count);
    layers->places = layers->first_nodes + layers->count;
    uint32_t node = 0;
    for (uint32_t i = 0; i < layers->count; i++) {
        layers->names[i] = text;
        text += strlen(text) + 1;
        layers->first_nodes[i] = node;
        uint32_t own = dla_read_word(layers->file + HEADER_BYTES + (size_t)i * 4);
        for (uint32_t k = 0; k < own; k++) {
            layers->nodes[node++] = text;
            text += strlen(text) + 1;
        }
    }
}

void dla_begin_events(dla_layers *layers, uint64_t now) {
    layers->event_count = 0;
    layers->start = now;
    if (layers->count) {
        memset(layers->places, 0, layers->count * sizeof *layers->places);
    }
}

void dla_add_event(dla_layers *layers, uint32_t layer, uint64_t from, uint64_t to) {
    if (layer >= layers->count) {
        return; /* END, and programs whose layers have no names */
    }
    if (!layers->places[layer]) {
        uint32_t end = layer + 1 < layers->count ? layers->first_nodes[layer + 1] : layers->node_count;
        byoc_event *begun = &layers->events[layers->event_count++];
        layers->places[layer] = layers->event_count;
        begun->layer = layers->names[layer];
        begun->node_count = end - layers->first_nodes[layer];
        begun->nodes = layers->nodes + layers->first_nodes[layer];
        begun->start_ns = from - layers->start;
        begun->duration_ns = 0;
    }
    layers->events[layers->places[layer] - 1].duration_ns += to - from;
}
