/* The layers of a program with the names of the model's nodes, from layers.bin, and what a run took for each.
 *
 * The file is little-endian: the magic bytes DLAL, the version, the numbers of layers and of names of nodes; for each
 * layer the number of its nodes; then the texts, each with a zero behind it: of each layer its name and its nodes'.
 */
#ifndef DLA_LAYERS_H
#define DLA_LAYERS_H

#include "byoc_driver.h"

/* Events of a region: one for each layer, in the order in which the layers began. All memory is the region's. */
typedef struct dla_layers {
    const uint8_t *file; /* NULL where the artifact has none */
    uint32_t count, node_count;
    const char **names; /* of layers */
    const char **nodes; /* of all layers, one behind another */
    uint32_t *first_nodes;
    uint32_t *places; /* of a layer's event, and 0 for one that has not begun, counted from 1 */
    byoc_event *events;
    uint32_t event_count;
    uint64_t start;
} dla_layers;

/* Check a file, and read the numbers of layers and nodes. Returns NULL, or the end of a sentence. */
const char *dla_check_layers(const byoc_blob *blob, dla_layers *layers);

/* Return the bytes that `dla_place_layers` needs. */
uint64_t dla_layer_bytes(const dla_layers *layers);

/* Lay the tables out in memory that is aligned to 8 bytes. */
void dla_place_layers(const byoc_blob *blob, dla_layers *layers, void *memory);

/* Begin the events of a run at a time. */
void dla_begin_events(dla_layers *layers, uint64_t now);

/* Add the time of a command to its layer. */
void dla_add_event(dla_layers *layers, uint32_t layer, uint64_t from, uint64_t to);

#endif
